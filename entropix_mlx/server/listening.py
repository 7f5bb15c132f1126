"""Serving until the end: a socket, signals, and a shutdown that lets running answers end."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
import time
from types import FrameType

import uvicorn
from uvicorn.server import HANDLED_SIGNALS

from ..errors import SettingsError
from .app import Server, make_app

MOST_CONNECTIONS = 512
"""At once; further ones get a 503."""
SEND_BYTES = 2**15
"""Of answers on their way to a client: what it does not take is seen when they are full."""
SWITCH_SECONDS = 0.001
"""After which Python lets another thread run: the model's and the event loop's wait for that."""
LOOK_SECONDS = 0.05
"""The interval at which a server that stops looks whether answers still run."""
ANSWER_SECONDS = 5.0
"""In which running answers may finish, from a signal to stop."""
CLIENT_SECONDS = 2
"""In which clients may read the rest of them, after that."""
THREAD_SECONDS = 1.5
"""In which the model's thread may end, which may be inside a pass."""


class Listener(uvicorn.Server):
    """uvicorn's server, which lets running answers end before it stops, but not for ever."""

    def __init__(self, server: Server) -> None:
        self._engine = server.engine
        config = uvicorn.Config(
            make_app(server),
            log_config=None,
            log_level="critical",  # what strangers send wrongly need not fill the log
            access_log=False,
            server_header=False,
            http="h11",
            ws="none",
            lifespan="off",
            limit_concurrency=MOST_CONNECTIONS,
            timeout_graceful_shutdown=CLIENT_SECONDS,
        )
        super().__init__(config)

    def listen(self, bound: socket.socket) -> None:
        """Serve until a signal; afterwards, leave the process with `output.leave`."""
        sys.setswitchinterval(SWITCH_SECONDS)
        try:
            self.run(sockets=[bound])
        finally:
            self._engine.stop(THREAD_SECONDS)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop at a signal; at a second one, do not wait for running answers."""
        self.force_exit = self.should_exit
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Wait for running answers, and end those that take too long; new requests get a 503."""
        self._engine.drain()
        late = time.monotonic() + ANSWER_SECONDS
        while self._engine.outstanding and not self.force_exit and time.monotonic() < late:
            await asyncio.sleep(LOOK_SECONDS)
        self._engine.drain(interrupt=True)
        await super().shutdown(sockets)


def make_listener(server: Server) -> Listener:
    """Return what serves; from now on it stops at a signal, whatever it does then."""
    listener = Listener(server)
    for sig in HANDLED_SIGNALS:  # uvicorn sets its own only while it runs
        signal.signal(sig, listener.handle_exit)
    return listener


def bind(host: str, port: int) -> socket.socket:
    """Take an address, on which nobody is answered yet.

    Raises:
        SettingsError: it is taken, or no address of this machine.
    """
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
