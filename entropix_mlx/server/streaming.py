"""Responses on their way: an answer in one piece or in chunks, and the monitor of all answers."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any

from starlette.types import Receive, Scope, Send

from .batching import Batcher, Begun, Ended, Event, Failed, Report, Stepped
from .openai.errors import RequestError, as_request_error
from .openai.responses import CompletionResponse

JSON = (b"content-type", b"application/json")
STREAM = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
PING_SECONDS = 15.0
"""After which a monitor that has nothing to show sends an empty comment."""
MOST_WAITING = 2000
"""Records that a watcher may be behind; one that does not listen loses the rest."""

Watcher = asyncio.Queue[dict[str, Any] | None]


class Responder:
    """An ASGI application that answers one request."""

    def __init__(self, response: CompletionResponse, batcher: Batcher, monitor: Monitor) -> None:
        self._response = response
        self._batcher = batcher
        self._monitor = monitor
        self._events: asyncio.Queue[list[Event]] = asyncio.Queue()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer; a client that goes away ends its answers."""
        request = self._response.request
        prompts = [(choice.prompt, choice.settings) for choice in self._response.choices]
        report = _handing_over(asyncio.get_running_loop(), self._events)
        try:
            submission = self._batcher.submit(
                prompts, report, forced=request.forced, scored=request.scored
            )
        except RequestError as error:
            await _refuse(error, send)
            return
        answer = asyncio.create_task(self._answer(send))
        gone = asyncio.create_task(_until_gone(receive))
        try:
            await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            submission.cancel.set()
            for task in (answer, gone):
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await answer
            self._monitor.end(self._response.id)

    async def _answer(self, send: Send) -> None:
        async with contextlib.aclosing(self._arriving()) as events:
            if self._response.request.stream:
                await self._stream(events, send)
            else:
                await self._send_whole(events, send)

    async def _arriving(self) -> AsyncGenerator[Event, None]:
        """Yield the events until the last answer ends, after adding them to their choices."""
        left = len(self._response.choices)
        while left:
            for event in await self._events.get():
                if isinstance(event, Begun | Stepped):
                    self._response.choices[event.index].add(event)
                if isinstance(event, Stepped):
                    self._monitor.show(self._response.id, event)
                yield event
                if isinstance(event, Failed):
                    return
                left -= isinstance(event, Ended)

    async def _send_whole(self, events: AsyncIterator[Event], send: Send) -> None:
        async for event in events:
            if isinstance(event, Failed):
                await _refuse(as_request_error(event.error), send)
                return
        await send(_start(200, [JSON]))
        await send({"type": "http.response.body", "body": _dumped(self._response.whole())})

    async def _stream(self, events: AsyncIterator[Event], send: Send) -> None:
        started = False
        async for event in events:
            if isinstance(event, Failed) and not started:
                await _refuse(as_request_error(event.error), send)
                return
            if not started:
                started = True
                await send(_start(200, STREAM))
            if isinstance(event, Failed):
                await _send_event(send, as_request_error(event.error).body)
                break
            choice = self._response.choices[event.index]
            chunk = choice.last_chunk() if isinstance(event, Ended) else choice.chunk(event)
            if chunk is not None:
                await _send_event(send, self._response.chunk(chunk))
        else:
            if self._response.request.include_usage:
                await _send_event(send, self._response.usage_chunk())
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


class Monitor:
    """Shows every step of all answers to those who watch, on the event loop's thread."""

    def __init__(self, enabled: bool = False) -> None:
        self.enabled = enabled
        self._watchers: set[Watcher] = set()

    def watch(self) -> Watcher:
        """Return a queue into which every record goes from now on; None is its end."""
        watcher: Watcher = asyncio.Queue()
        self._watchers.add(watcher)
        return watcher

    def leave(self, watcher: Watcher) -> None:
        self._watchers.discard(watcher)
        watcher.put_nowait(None)

    def close(self) -> None:
        for watcher in list(self._watchers):
            self.leave(watcher)

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


class MonitorResponder:
    """An ASGI application that streams the monitor until its watcher leaves, or the server ends."""

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watcher = self._monitor.watch()
        gone = asyncio.create_task(_until_gone(receive))
        gone.add_done_callback(lambda _: self._monitor.leave(watcher))
        await send(_start(200, STREAM))
        try:
            while True:
                body = b": nothing yet\n\n"
                with contextlib.suppress(TimeoutError):
                    record = await asyncio.wait_for(watcher.get(), PING_SECONDS)
                    if record is None:
                        break
                    body = _event_bytes(record)
                await send({"type": "http.response.body", "body": body, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            gone.cancel()


async def _refuse(error: RequestError, send: Send) -> None:
    headers = [(name.lower().encode(), value.encode()) for name, value in error.headers.items()]
    await send(_start(error.status, [JSON, *headers]))
    await send({"type": "http.response.body", "body": _dumped(error.body)})


async def _send_event(send: Send, record: Any) -> None:
    await send({"type": "http.response.body", "body": _event_bytes(record), "more_body": True})


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _handing_over(loop: asyncio.AbstractEventLoop, events: asyncio.Queue[list[Event]]) -> Report:
    """Return a function that the model's thread calls to put events into a queue of the loop."""

    def report(arrived: list[Event]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
            loop.call_soon_threadsafe(events.put_nowait, arrived)

    return report


def _start(status: int, headers: Sequence[tuple[bytes, bytes]]) -> dict[str, Any]:
    return {"type": "http.response.start", "status": status, "headers": list(headers)}


def _event_bytes(record: Any) -> bytes:
    return b"data: " + _dumped(record) + b"\n\n"


def _dumped(record: Any) -> bytes:
    return json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
