"""Serving until the end: the socket, signals, and a shutdown that ends answers cleanly."""

from __future__ import annotations

import asyncio
import os
import socket
from types import FrameType

import uvicorn

from .app import Server, make_app
from .middleware import Guard
from .protocol import Protocol

CLOSING_SECONDS = 2.0
"""What is left to send the last chunks after the running answers were ended."""


class Listener(uvicorn.Server):
    """uvicorn's server; told to stop, it lets running answers end, but not for ever."""

    def __init__(self, app: Guard, server: Server) -> None:
        self._server = server
        seconds = server.served.limits.shutdown_seconds
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            http=Protocol,
            ws="none",
            lifespan="off",
            timeout_graceful_shutdown=int(seconds + CLOSING_SECONDS) + 1,
            h11_max_incomplete_event_size=2**16,
        )
        super().__init__(config)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop at a signal; at a second one, without waiting for what runs."""
        self.force_exit = self.should_exit
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the socket, wait for what runs, end what still runs then."""
        self._server.batcher.drain()
        self._server.monitor.close()
        ending = asyncio.create_task(self._end_late())
        try:
            await super().shutdown(sockets)
        finally:
            ending.cancel()

    async def _end_late(self) -> None:
        """End what still runs after a while, so that every stream gets its last chunk."""
        await asyncio.sleep(self._server.served.limits.shutdown_seconds)
        self._server.batcher.interrupt()


def listen(server: Server, bound: socket.socket) -> None:
    """Serve on a socket until a signal comes."""
    listener = Listener(make_app(server), server)
    try:
        listener.run(sockets=[bound])
    finally:
        server.batcher.stop()
    if server.batcher.alive:  # inside MLX: the interpreter would be aborted
        os._exit(0)
