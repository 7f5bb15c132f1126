"""Asking a server over HTTP, with the standard library alone."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from ..errors import EntropixError

KEY_VARIABLE = "ENTROPIX_API_KEY"
"""The variable of the environment that holds the key, on both sides."""
CONNECT_SECONDS = 10.0
READ_SECONDS = 600.0
"""How long an answer may take to begin, or between two tokens: its prompt may be long."""
CANCEL_SECONDS = 0.1
"""How often it is looked whether an answer is still read."""
REFUSAL_BYTES = 2**16


class ServerError(EntropixError):
    """The server cannot be reached, or refuses a request."""

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Address:
    """Where a server is, and the key that it wants."""

    url: str
    key: str | None = None

    def get(self, path: str) -> Any:
        """Return the JSON of a route.

        Raises:
            ServerError: there is no such server, or it refuses.
        """
        with contextlib.closing(Reply(self, "GET", path, None, threading.Event())) as reply:
            return reply.whole()

    def post(self, path: str, body: Any, cancel: threading.Event) -> Reply:
        """Send JSON, and return the reply once it begins.

        Raises:
            ServerError: there is no such server, it refuses, or the request was cancelled.
        """
        return Reply(self, "POST", path, json.dumps(body).encode(), cancel)

    def connect(self) -> http.client.HTTPConnection:
        """Return a connection that is open.

        Raises:
            ServerError: this is no address.
        """
        parts = urlsplit(self.url)
        kinds: dict[str, type[http.client.HTTPConnection]] = {
            "http": http.client.HTTPConnection,
            "https": http.client.HTTPSConnection,
        }
        try:
            if not parts.hostname:
                raise ValueError
            connection = kinds[parts.scheme](parts.hostname, parts.port, timeout=CONNECT_SECONDS)
        except (ValueError, KeyError):
            message = f"{self.url!r} is no address of a server: write http://127.0.0.1:8080"
            raise ServerError(message) from None
        try:
            connection.connect()
        except BaseException:
            connection.close()
            raise
        return connection

    def path(self, route: str) -> str:
        """Return the path of a route; the address may end with /v1, as other clients want it."""
        return urlsplit(self.url).path.rstrip("/").removesuffix("/v1") + route


class Reply:
    """The reply to one request, which a cancel token cuts off however long nothing comes."""

    def __init__(
        self,
        address: Address,
        method: str,
        route: str,
        content: bytes | None,
        cancel: threading.Event,
    ) -> None:
        """Ask, and wait until the reply begins; see `Address.post`."""
        self._address = address
        self._cancel = cancel
        self._closed = threading.Event()
        self._open = contextlib.ExitStack()
        headers = {"Content-Type": "application/json"}
        if address.key is not None:
            headers["Authorization"] = f"Bearer {address.key}"
        with self._told():
            connection = address.connect()
            self._open.callback(connection.close)
            self._watch(connection.sock)
            connection.request(method, address.path(route), content, headers)
            connection.sock.settimeout(READ_SECONDS)
            self._response = connection.getresponse()
            self._open.callback(self._response.close)
            if self._response.status != http.client.OK:
                raise _refusal(self._response)

    def whole(self) -> Any:
        """Return the JSON of the whole reply."""
        with self._told():
            return json.load(self._response)

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the server-sent events, until they end or the request is cancelled."""
        while not self._cancel.is_set():
            with self._told():
                line = self._response.readline()
            if not line or line.startswith(b"data: [DONE]"):
                return
            if line.startswith(b"data: {"):
                yield json.loads(line.removeprefix(b"data: "))

    def close(self) -> None:
        """Close the connection."""
        self._closed.set()
        self._open.close()

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Turn what goes wrong into an error of ours."""
        try:
            yield
        except ServerError:
            self.close()
            raise
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            message = f"no answer from the server at {self._address.url}: {reason}"
            raise ServerError(message) from error

    def _watch(self, connected: socket.socket) -> None:
        def cut() -> None:
            while not self._closed.wait(CANCEL_SECONDS):
                if self._cancel.is_set():
                    with contextlib.suppress(OSError):
                        connected.shutdown(socket.SHUT_RDWR)
                    return

        threading.Thread(target=cut, name="cancel", daemon=True).start()


def _refusal(response: http.client.HTTPResponse) -> ServerError:
    try:
        error = json.loads(response.read(REFUSAL_BYTES))["error"]
        return ServerError(f"the server refuses: {error['message']}", error["code"])
    except (ValueError, KeyError, TypeError):
        return ServerError(f"the server answers with status {response.status}: is it entropix?")
