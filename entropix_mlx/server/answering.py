"""The routes that answer: in one piece, or in chunks as the answer grows."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from ..errors import EntropixError
from ..step import Step
from .completions import Choice, CompletionResponse
from .engine import ServingEngine
from .errors import RequestError, as_request_error
from .models import Models
from .protocols import Protocol
from .requests import AnswerRequest, parse_body

STREAM = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
BODY_BYTES = 4 * 2**20
SMALL_BODY = 2**16
BODY_SECONDS = 30.0
"""In which a whole body must have come."""
WRITE_SECONDS = 60.0
"""In which a client must take something of what it is sent."""
Steps = AsyncGenerator[tuple[Choice, Step | None], None]


async def read_body(request: Request) -> bytearray:
    """Return the body of a request.

    Raises:
        RequestError: it is too long, or comes too slowly.
        ClientDisconnect: the client has gone.
    """
    content = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for piece in request.stream():
                content += piece
                if len(content) > BODY_BYTES:
                    message = f"the body is longer than {BODY_BYTES:,} bytes"
                    raise RequestError(message, status=413, code="body_too_long")
    except TimeoutError:
        raise RequestError("the body came too slowly", status=408, code="timeout") from None
    return content


class AnswerRoute:
    """The ASGI application of a route that answers."""

    def __init__(self, models: Models, engine: ServingEngine, protocol: type[Protocol]) -> None:
        self._models = models
        self._engine = engine
        self._protocol = protocol

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer; a client that goes away ends its request, wherever that is."""
        self._engine.check_room()
        content = await read_body(Request(scope, receive))
        answer = asyncio.create_task(self._answer(content, scope, receive, send))
        gone = asyncio.create_task(_until_gone(receive))
        try:
            await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (answer, gone):
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await answer

    async def _answer(self, content: bytearray, scope: Scope, receive: Receive, send: Send) -> None:
        if len(content) <= SMALL_BODY:  # at once: requests keep the order in which they came
            request, protocol = self._read(content)
        else:
            request, protocol = await run_in_threadpool(self._read, content)
        async with self._models.use(request.model) as prompts:
            self._engine.check_room(answers=1)
            choices = await prompts.choices(request)
            response = CompletionResponse(request, choices, prompts.served.name)
            async with contextlib.aclosing(aiter(self._engine.submit(choices))) as steps:
                if request.stream:
                    await _stream(_events(response, protocol, steps), send)
                    return
                async for choice, step in steps:
                    if step is not None:
                        choice.add(step)
            whole = _encoded(protocol.whole(response.whole()))
            await Response(whole, media_type="application/json")(scope, receive, send)

    def _read(self, content: bytearray) -> tuple[AnswerRequest, Protocol]:
        body = parse_body(content)
        return self._protocol.request.model_validate(body), self._protocol(body)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _stream(events: AsyncGenerator[bytes, None], send: Send) -> None:
    """Send events; an error before the first of them is raised, and nothing is sent."""
    start: Message | None
    start = {"type": "http.response.start", "status": 200, "headers": STREAM}
    async with contextlib.aclosing(events):
        async for event in events:
            async with asyncio.timeout(WRITE_SECONDS):
                if start is not None:
                    await send(start)
                start = None
                await send({"type": "http.response.body", "body": event, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _events(
    response: CompletionResponse, protocol: Protocol, steps: Steps
) -> AsyncGenerator[bytes, None]:
    """Yield the server-sent events of a response."""
    begun = False
    try:
        async for choice, step in steps:
            for chunk in response.chunks(choice, step):
                for event in protocol.events(chunk, response.usage()):
                    begun = True
                    yield _event_bytes(event)
        if response.request.include_usage:
            for event in protocol.events(response.usage_chunk(), response.usage()):
                yield _event_bytes(event)
    except EntropixError as error:
        if not begun:
            raise
        yield _event_bytes(protocol.failed(as_request_error(error)))
    if protocol.done:
        yield protocol.done


def _event_bytes(event: Any) -> bytes:
    name = b"event: " + event["type"].encode() + b"\n" if "type" in event else b""
    return name + b"data: " + _encoded(event) + b"\n\n"


def _encoded(record: Any) -> bytes:
    return json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
