"""The answer to one request: in one piece, or in chunks as they come."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ..errors import EntropixError
from ..profiles.fields import shown
from .engine import AnswerQueue, Ended, Event, ServingEngine
from .model_info import Limits, ServedModel
from .models import LoadedModel, Models
from .openai.errors import RequestError, as_request_error
from .openai.fields import Json, parse_body
from .openai.requests import CompletionRequest
from .openai.responses import CompletionResponse

Parse = Callable[[Json, ServedModel], CompletionRequest]
STREAM = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}
SMALL_BODY = 2**16
"""Bytes up to which a body is parsed at once."""
WRITE_SECONDS = 60.0
"""In which a client must take something of what it is sent."""


async def fields_of(request: Request, limits: Limits) -> Json:
    """Return the fields of a request's body.

    Raises:
        RequestError: the body is too long, comes too slowly, or is no JSON object.
        ClientDisconnect: the client has gone.
    """
    content = bytearray()
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for piece in request.stream():
                content += piece
                if len(content) > limits.body_bytes:
                    message = f"the body is longer than {limits.body_bytes:,} bytes"
                    raise RequestError(message, status=413, code="body_too_long")
    except TimeoutError:
        raise RequestError("the body came too slowly", status=408, code="timeout") from None
    if len(content) <= SMALL_BODY:
        return parse_body(content)
    return await run_in_threadpool(parse_body, content)


def model_of(body: Json) -> str | None:
    """Return the model that a body names.

    Raises:
        RequestError: it names one by something else than a text.
    """
    name = body.get("model")
    if not isinstance(name, str | None):
        raise RequestError(f"model must be a text, not {shown(name)}", "model")
    return name


@dataclass(eq=False)
class Answering:
    """An ASGI application that answers one request."""

    models: Models
    engine: ServingEngine
    parse: Parse
    response: CompletionResponse = field(init=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer; a client that goes away ends its request, wherever that is."""
        body = await fields_of(Request(scope, receive), self.models.limits)
        answer = asyncio.create_task(self._answer(body, scope, receive, send))
        gone = asyncio.create_task(_until_gone(receive))
        try:
            await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (answer, gone):
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await answer

    async def _answer(self, body: Json, scope: Scope, receive: Receive, send: Send) -> None:
        async with self.models.use(model_of(body)) as model:
            request = await run_in_threadpool(self.parse, body, model.served)
            self.engine.check_room(request.answers)
            try:
                await self._respond(model, request, scope, receive, send)
            except EntropixError as error:  # before the first token: an error of the whole request
                raise request.refusal(error) from error

    async def _respond(
        self,
        model: LoadedModel,
        request: CompletionRequest,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        choices = await model.prompts.choices(request)
        self.response = CompletionResponse(request, choices, model.served)
        prompts = [(choice.prompt, choice.settings) for choice in choices]
        answers = self.engine.submit(prompts, request.stated.forced, request.scored)
        async with contextlib.aclosing(self._events(answers)) as events:
            first = await anext(events)
            if request.stated.stream:
                await self._stream(first, events, send)
            else:
                await (await self._whole(events))(scope, receive, send)

    async def _events(self, answers: AnswerQueue) -> AsyncGenerator[Event, None]:
        """Yield the events of the answers, after adding each to its choice."""
        async with contextlib.aclosing(answers.__aiter__()) as events:
            async for event in events:
                self.response.choices[event.index].add(event)
                yield event

    async def _whole(self, events: AsyncIterator[Event]) -> Response:
        async for _ in events:
            pass
        whole, translator = self.response.whole(), self.response.request.translator
        whole = whole if translator is None else translator.whole(whole)
        return Response(_dumped(whole), media_type="application/json")

    async def _stream(self, first: Event, later: AsyncIterator[Event], send: Send) -> None:
        headers = [(name.encode(), value.encode()) for name, value in STREAM.items()]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async with contextlib.aclosing(self._chunks(first, later)) as chunks:
            async for chunk in chunks:
                async with asyncio.timeout(WRITE_SECONDS):
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def _chunks(
        self, first: Event, later: AsyncIterator[Event]
    ) -> AsyncGenerator[bytes, None]:
        translator = self.response.request.translator
        event: Event | None = first
        try:
            while event is not None:
                for piece in self._pieces(event):
                    yield piece
                event = await anext(later, None)
        except EntropixError as error:
            body = as_request_error(error).body
            failed = body if translator is None else translator.failed(body["error"])
            yield _event_bytes(failed, named=translator is not None)
        else:
            if self.response.request.include_usage:
                yield _event_bytes(self.response.usage_chunk())
        if translator is None:
            yield b"data: [DONE]\n\n"

    def _pieces(self, event: Event) -> Iterator[bytes]:
        choice = self.response.choices[event.index]
        chunk = choice.last_chunk() if isinstance(event, Ended) else choice.chunk(event)
        if chunk is None:
            return
        translator, framed = self.response.request.translator, self.response.chunk(chunk)
        if translator is None:
            yield _event_bytes(framed)
            return
        for record in translator.events(framed, self.response.usage()):
            yield _event_bytes(record, named=True)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _event_bytes(record: Any, named: bool = False) -> bytes:
    name = b"event: " + record["type"].encode() + b"\n" if named else b""
    return name + b"data: " + _dumped(record) + b"\n\n"


def _dumped(record: Any) -> bytes:
    return json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
