"""uvicorn's HTTP/1.1, for clients that are slow, silent or no HTTP clients at all."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from .openai.errors import RequestError

HEADER_SECONDS = 30.0
"""In which the head of a request must have come."""
WRITE_SECONDS = 60.0
"""In which a client must take something of what it is sent."""


class Protocol(H11Protocol):
    """One connection. One that stands still is cut: it holds memory, and perhaps an answer."""

    _head_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin, and wait for a request."""
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """End; the answer that runs is told."""
        for timer in (self._head_timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._await_head()

    def pause_writing(self) -> None:
        """Note that the client does not take what it is sent."""
        super().pause_writing()
        self._write_timer = self.loop.call_later(WRITE_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """Note that it does again."""
        if self._write_timer is not None:
            self._write_timer.cancel()
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection without requests, even if its client takes nothing any more."""
        super().timeout_keep_alive_handler()
        self.loop.call_later(WRITE_SECONDS, self.transport.abort)

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP in the shape of all other errors."""
        error = RequestError("this is not a request of HTTP/1.1", code="invalid_http")
        headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
        events: tuple[Any, ...] = (
            h11.Response(status_code=error.status, headers=headers, reason=b"Bad Request"),
            h11.Data(data=json.dumps(error.body).encode()),
            h11.EndOfMessage(),
        )
        for event in events:
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _await_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
        self._head_timer = self.loop.call_later(HEADER_SECONDS, self._check_head)

    def _check_head(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()
