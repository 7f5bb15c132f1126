"""Responses on their way: an answer in one piece or in chunks, and the monitor of all answers."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from .batching import Batcher
from .intake import Parse
from .models import Models
from .openai.body import Body
from .openai.errors import as_request_error
from .openai.responses import CompletionResponse
from .submission import Begun, Ended, Event, Failed, Stepped, Submission

STREAM = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}
PING_SECONDS = 15.0
"""After which a monitor that has nothing to show sends an empty comment."""
MOST_WAITING = 2000
"""Records that a watcher may be behind; one that does not listen loses the rest."""


@dataclass(eq=False)
class Responder:
    """An ASGI application that answers one request."""

    models: Models
    parse: Parse
    batcher: Batcher
    monitor: Monitor
    client: str = field(init=False)
    response: CompletionResponse = field(init=False)
    _events: asyncio.Queue[list[Event]] = field(default_factory=asyncio.Queue)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer; a client that goes away ends its request, wherever that is."""
        async with contextlib.AsyncExitStack() as held:
            content = await self.models.bodies.read(Request(scope, receive), held)
            self.client = (scope.get("client") or ("",))[0]
            answer = asyncio.create_task(self._answer(content, held, scope, receive, send))
            gone = asyncio.create_task(_until_gone(receive))
            try:
                await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (answer, gone):
                    task.cancel()
                with contextlib.suppress(asyncio.CancelledError, OSError):
                    await answer

    async def _answer(
        self, content: bytearray, held: contextlib.AsyncExitStack, *connection: Any
    ) -> None:
        size = len(content)
        bodies = self.models.bodies
        body = await bodies.parse(size, functools.partial(Body.parse, content))
        content.clear()  # the answer may take minutes
        async with self.models.use(body) as model:
            request = await model.intake.parse(body, size, self.parse)
            del body
            submission = Submission(
                model.runner,
                request.answers,
                self._reporter(),
                request.forced,
                self.client,
                self._events.qsize,
                request.scored,
            )
            self.batcher.admit(submission)
            try:
                choices = await model.intake.tokenize(request, size)
                await held.aclose()
                self.response = CompletionResponse(request, choices, model.served)
                prompts = [(choice.prompt, choice.settings) for choice in choices]
                self.batcher.submit(submission, prompts)
                await self._send(*connection)
            finally:
                self.batcher.withdraw(submission)

    def _reporter(self) -> Callable[[list[Event]], None]:
        loop = asyncio.get_running_loop()

        def report(arrived: list[Event]) -> None:  # on the model's thread
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
                loop.call_soon_threadsafe(self._events.put_nowait, arrived)

        return report

    async def _send(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with contextlib.aclosing(self._arriving()) as events:
                first = await anext(events)
                if isinstance(first, Failed):
                    raise as_request_error(first.error)
                if self.response.request.stream:
                    chunks = self._chunks(first, events)
                    await StreamingResponse(chunks, headers=STREAM).stream_response(send)
                else:
                    await (await self._whole(events))(scope, receive, send)
        finally:
            self.monitor.end(self.response.id)

    async def _arriving(self) -> AsyncGenerator[Event, None]:
        """Yield the events until the last answer ends, after adding them to their choices."""
        left = len(self.response.choices)
        while left:
            for event in await self._events.get():
                # Lets the loop see to others, and notice that this client has gone: neither the
                # queue nor `send` waits while there is more.
                await asyncio.sleep(0)
                if isinstance(event, Begun | Stepped | Ended):
                    self.response.choices[event.index].add(event)
                if isinstance(event, Stepped):
                    self.monitor.show(self.response.id, event)
                yield event
                if isinstance(event, Failed):
                    return
                left -= isinstance(event, Ended)

    async def _whole(self, events: AsyncIterator[Event]) -> Response:
        async for event in events:
            if isinstance(event, Failed):
                raise as_request_error(event.error)
        whole, translator = self.response.whole(), self.response.request.translator
        whole = whole if translator is None else translator.whole(whole)
        return Response(_dumped(whole), media_type="application/json")

    async def _chunks(self, first: Event, later: AsyncIterator[Event]) -> AsyncIterator[bytes]:
        translator = self.response.request.translator
        event: Event | None = first
        while event is not None:
            if isinstance(event, Failed):
                error = as_request_error(event.error).body
                failed = error if translator is None else translator.failed(error["error"])
                yield _event_bytes(failed, named=translator is not None)
                break
            choice = self.response.choices[event.index]
            chunk = choice.last_chunk() if isinstance(event, Ended) else choice.chunk(event)
            if chunk is not None:
                for piece in self._encoded(self.response.chunk(chunk)):
                    yield piece
            event = await anext(later, None)
        else:
            if self.response.request.include_usage:
                yield _event_bytes(self.response.usage_chunk())
        if translator is None:
            yield b"data: [DONE]\n\n"

    def _encoded(self, chunk: dict[str, Any]) -> Iterator[bytes]:
        translator = self.response.request.translator
        if translator is None:
            yield _event_bytes(chunk)
            return
        for record in translator.events(chunk, self.response.usage()):
            yield _event_bytes(record, named=True)


class Monitor:
    """Shows every step of all answers to those who watch, on the event loop's thread."""

    def __init__(self, enabled: bool = False) -> None:
        self.enabled = enabled
        """Whether anybody may watch at all."""
        self._watchers: set[asyncio.Queue[dict[str, Any] | None]] = set()

    async def records(self) -> AsyncIterator[bytes]:
        """Yield everything that is shown from now on as server-sent events, until `close`."""
        watcher: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._watchers.add(watcher)
        try:
            while True:
                try:
                    record = await asyncio.wait_for(watcher.get(), PING_SECONDS)
                except TimeoutError:
                    yield b": nothing yet\n\n"
                    continue
                if record is None:
                    return
                yield _event_bytes(record)
        finally:
            self._watchers.discard(watcher)

    def close(self) -> None:
        for watcher in self._watchers:
            watcher.put_nowait(None)

    def show(self, request: str, event: Stepped) -> None:
        if self._watchers:
            step = event.step.to_dict()
            self._send({"request": request, "index": event.index, "step": step})

    def end(self, request: str) -> None:
        self._send({"request": request, "ended": True})

    def _send(self, record: dict[str, Any]) -> None:
        for watcher in self._watchers:
            if watcher.qsize() < MOST_WAITING:
                watcher.put_nowait(record)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _event_bytes(record: Any, named: bool = False) -> bytes:
    name = b"event: " + record["type"].encode() + b"\n" if named else b""
    return name + b"data: " + _dumped(record) + b"\n\n"


def _dumped(record: Any) -> bytes:
    return json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
