"""One request on its way: its order's events become a response, in one piece or in chunks."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.types import Receive, Scope, Send

from .batching import Batcher
from .events import (
    Begun,
    Came,
    Ended,
    Event,
    Failed,
    Item,
)
from .monitor import Monitor
from .openai.errors import RequestError, as_request_error
from .openai.parse import Asked
from .openai.responses import Choice, Response

JSON = (b"content-type", b"application/json")
STREAM = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


@dataclass(frozen=True)
class Asking:
    """A request that was read and checked."""

    asked: Asked
    items: Sequence[Item]
    choices: Sequence[Choice]
    response: Response


class Answering:
    """An ASGI application that answers one request."""

    def __init__(self, asking: Asking, batcher: Batcher, monitor: Monitor) -> None:
        """Prepare.

        Args:
            asking: the request.
            batcher: where its order goes.
            monitor: is shown what is answered.
        """
        self._asking = asking
        self._batcher = batcher
        self._monitor = monitor
        self._events: asyncio.Queue[list[Event]] = asyncio.Queue()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer; a client that goes away ends its order."""
        loop = asyncio.get_running_loop()
        try:
            order = self._batcher.submit(self._asking.items, _teller(loop, self._events))
        except RequestError as error:
            await self._refuse(error, send)
            return
        answer = asyncio.create_task(self._answer(send))
        gone = asyncio.create_task(until_gone(receive))
        try:
            await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            order.cancel.set()
            for task in (answer, gone):
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await answer
            self._monitor.end(self._asking.response.id)

    async def _answer(self, send: Send) -> None:
        events = self._told()
        try:
            if self._asking.asked.stream:
                await self._stream(events, send)
            else:
                await self._send_whole(events, send)
        finally:
            await events.aclose()

    async def _told(self) -> AsyncGenerator[Event, None]:
        """Yield the events until the order ends."""
        left = len(self._asking.items)
        while left:
            for event in await self._events.get():
                if isinstance(event, Begun | Came):
                    self._asking.choices[event.index].note(event)
                if isinstance(event, Came):
                    self._monitor.show(self._asking.response.id, event)
                yield event
                if isinstance(event, Failed):
                    return
                left -= isinstance(event, Ended)

    async def _send_whole(self, events: AsyncIterator[Event], send: Send) -> None:
        async for event in events:
            if isinstance(event, Failed):
                await self._refuse(as_request_error(event.error), send)
                return
        content = _dumped(self._asking.response.whole(self._asking.choices))
        await send(_start(200, [JSON]))
        await send({"type": "http.response.body", "body": content})

    async def _stream(self, events: AsyncIterator[Event], send: Send) -> None:
        asking, started = self._asking, False
        async for event in events:
            if isinstance(event, Failed) and not started:
                await self._refuse(as_request_error(event.error), send)
                return
            if not started:
                started = True
                await send(_start(200, STREAM))
            if isinstance(event, Failed):
                await self._send_event(send, as_request_error(event.error).body)
                break
            if (chunk := self._chunk(event)) is not None:
                await self._send_event(send, asking.response.chunk(chunk))
        else:
            if asking.asked.include_usage:
                await self._send_event(send, asking.response.usage_chunk(asking.choices))
        last = {"type": "http.response.body", "body": b"data: [DONE]\n\n"}
        await send(last)

    def _chunk(self, event: Event) -> Any:
        """Return what a stream tells of an event: the choice of a chunk, or None."""
        if isinstance(event, Failed):
            return None
        choice = self._asking.choices[event.index]
        return choice.last_chunk() if isinstance(event, Ended) else choice.chunk(event)

    async def _refuse(self, error: RequestError, send: Send) -> None:
        headers = [(name.lower().encode(), value.encode()) for name, value in error.headers.items()]
        await send(_start(error.status, [JSON, *headers]))
        await send({"type": "http.response.body", "body": _dumped(error.body)})

    async def _send_event(self, send: Send, record: Any) -> None:
        body = event_bytes(record)
        await send({"type": "http.response.body", "body": body, "more_body": True})


async def until_gone(receive: Receive) -> None:
    """Return when the client has gone away."""
    while (await receive())["type"] != "http.disconnect":
        pass


def event_bytes(record: Any) -> bytes:
    """Return a record as a server-sent event."""
    return b"data: " + _dumped(record) + b"\n\n"


def _teller(
    loop: asyncio.AbstractEventLoop, events: asyncio.Queue[list[Event]]
) -> Callable[[list[Event]], None]:
    """Return what hands events over from the model's thread."""

    def tell(noted: list[Event]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
            loop.call_soon_threadsafe(events.put_nowait, noted)

    return tell


def _start(status: int, headers: Sequence[tuple[bytes, bytes]]) -> dict[str, Any]:
    return {"type": "http.response.start", "status": status, "headers": list(headers)}


def _dumped(record: Any) -> bytes:
    return json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
