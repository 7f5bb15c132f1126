"""Serving until the end: sockets, slow connections, signals, and a shutdown that ends answers.

A connection that stands still is cut: it holds memory, and perhaps an answer.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import resource
import signal
import socket
import sys
import time
from types import FrameType
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import HANDLED_SIGNALS

from ..errors import SettingsError
from .app import Server, make_app
from .middleware import Guard
from .openai.errors import RequestError

HEADER_SECONDS = 30.0
"""In which the head of a request must have come."""
MOST_CONNECTIONS = 1000
"""At once. Beyond them, and wherever files are scarce, each new one takes the place of an idle
one."""
BACKLOG = 128
"""Connections that are taken up together, before there is a look at how many there are."""
OTHER_FILES = 64
"""Files that the process opens beside its connections."""
GONE_SECONDS = 0.5
"""The interval at which a client that sends nothing more is asked whether it still listens."""
STILL_HERE = b"HTTP/1.1 100 Continue\r\n\r\n"
SMALL_CHUNK = re.compile(rb"\r\n[0-9A-Fa-f]{1,2}\r\n")
MOST_SMALL_CHUNKS = 4096
"""Of less than 256 bytes, in the body of a request; each takes as long as some kilobytes."""
SEND_BYTES = 2**15
"""Of answers on their way to a client: what it does not take is seen when they are full."""
WRITE_SECONDS = 60.0
"""In which a client must take something of what it is sent."""
SWITCH_SECONDS = 0.001
"""After which Python lets another thread run: the model's and the event loop's wait for that."""
LOOK_SECONDS = 0.05
"""The interval at which a server that stops looks whether answers still run."""
ANSWERS_SHARE = 0.6
"""Of the time until the end: in it running answers may finish, in the rest what they computed goes
to the disk, if it is to."""
CLOSING_SECONDS = 1.0
"""Granted to send the last chunks after the running answers were ended."""
LEAST_SECONDS = 1.0
"""Granted to the model's thread, which may be inside a pass."""


class Listener(uvicorn.Server):
    """uvicorn's server, which lets running answers end before it stops, but not for ever."""

    def __init__(self, app: Guard, server: Server) -> None:
        self._server = server
        self._until = math.inf
        """When the process must have ended."""
        self._seconds = server.models.limits.shutdown_seconds
        config = uvicorn.Config(
            app,
            log_level="warning",
            log_config=None,
            access_log=False,
            server_header=False,
            http=HttpConnection,
            ws="none",
            lifespan="off",
            timeout_graceful_shutdown=int(self._seconds),
            h11_max_incomplete_event_size=2**16,
            backlog=BACKLOG,
        )
        super().__init__(config)

    def listen(self, bound: socket.socket) -> None:
        """Serve until a signal; afterwards, leave the process with `output.leave`."""
        sys.setswitchinterval(SWITCH_SECONDS)
        try:
            self.run(sockets=[bound])
        finally:
            left = min(self._until - time.monotonic(), self._seconds)
            self._server.batcher.stop(max(left, LEAST_SECONDS))

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop at a signal; at a second one, do not wait for running answers."""
        self.force_exit = self.should_exit
        self.should_exit = True
        self._until = time.monotonic() + (0 if self.force_exit else self._seconds)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Wait for running answers, and end those that take too long; who comes now is told."""
        self._server.batcher.drain()
        self._server.monitor.close()
        ending = asyncio.create_task(self._end_late())
        try:
            while self._server.batcher.outstanding and not (self.force_exit or ending.done()):
                await asyncio.sleep(LOOK_SECONDS)
            await super().shutdown(sockets)
            await self._hang_up()
        finally:
            ending.cancel()

    async def _end_late(self) -> None:
        """End after a while all that still runs, so that every stream gets its last chunk."""
        await asyncio.sleep(ANSWERS_SHARE * self._seconds)
        self._server.batcher.interrupt()
        await asyncio.sleep(CLOSING_SECONDS)
        await self._hang_up()

    async def _hang_up(self) -> None:
        """Have what still runs end as if its clients had gone; cancelled, it would report that."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        if self.server_state.tasks:
            await asyncio.wait(self.server_state.tasks, timeout=CLOSING_SECONDS)


def make_listener(server: Server) -> Listener:
    """Return what serves; from now on it stops at a signal, whatever it does then."""
    listener = Listener(make_app(server), server)
    for sig in HANDLED_SIGNALS:  # uvicorn sets its own only while it runs
        signal.signal(sig, listener.handle_exit)
    return listener


def bind(host: str, port: int) -> socket.socket:
    """Take an address, on which nobody is answered yet."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        family, kind, protocol, _, address = found
        # asyncio sets TCP_NODELAY only where a socket names its protocol; without it, each answer
        # on a connection that is kept alive waits 40 ms and more for an acknowledgement.
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
        bound.bind(address)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SettingsError(
            f"cannot listen on {host}: {reason}; choose another --host or --port"
        ) from error
    return bound


def most_connections() -> int:
    """Return how many connections there may be at once, by the limit on open files."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    allowed = MOST_CONNECTIONS if files < 0 else files - BACKLOG - OTHER_FILES
    return max(1, min(allowed, MOST_CONNECTIONS))


class HttpConnection(H11Protocol):
    """One connection, with limits on the time that a client may take."""

    _since = 0.0
    _small_chunks = 0
    _head_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None
    _gone_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(SEND_BYTES)
        self._await_head()
        if len(self.connections) > most_connections():
            self._take_place()

    def data_received(self, data: bytes) -> None:
        self._small_chunks += len(SMALL_CHUNK.findall(data))
        if self._small_chunks > MOST_SMALL_CHUNKS:
            self.transport.abort()
        else:
            super().data_received(data)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep the connection for the answer, if a whole request came; the client may listen."""
        if self.cycle is None or self.cycle.more_body or self.cycle.response_complete:
            return False
        self.cycle.keep_alive = False
        self._gone_timer = self.loop.call_later(GONE_SECONDS, self._ask_whether_gone)
        return True

    def _ask_whether_gone(self) -> None:
        """Send something to a client that may have closed its side only, or be gone altogether.

        TCP says which only in reply to data; HTTP/1.1 allows an interim response at any time, and
        clients pass over it. A response that has begun is such data itself.
        """
        if self.cycle.response_started or self.transport.is_closing():
            return
        if self.scope["http_version"] == "1.1":
            self.transport.write(STILL_HERE)
        self._gone_timer = self.loop.call_later(GONE_SECONDS, self._ask_whether_gone)

    @property
    def standing(self) -> tuple[bool, bool, float]:
        """Who may be closed for a new connection: the idle before those whose body comes, and of
        them those that are so for longest; who is answered, not at all."""
        idle = self.cycle is None or self.cycle.response_complete
        return not (idle or self.cycle.more_body), not idle, self._since

    def _take_place(self) -> None:
        others: set[Any] = self.connections - {self}
        oldest = min(others, key=lambda other: other.standing, default=self)
        leaving = self if oldest.standing[0] else oldest
        self.connections.discard(leaving)
        leaving.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._head_timer, self._write_timer, self._gone_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._small_chunks = 0
        self._await_head()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_timer = self.loop.call_later(WRITE_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection without requests, even if its client takes nothing any more."""
        super().timeout_keep_alive_handler()
        self.loop.call_later(WRITE_SECONDS, self.transport.abort)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP, in the shape of all other errors."""
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
        if self.cycle is not None:  # a request whose body is not HTTP: nobody gets its response
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    def _await_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
        self._since = self.loop.time()
        self._head_timer = self.loop.call_later(HEADER_SECONDS, self._check_head)

    def _check_head(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()
