"""Around every route: who may ask, which pages may read the answer, and errors as JSON.

A request must show the key, come from no other site's page, and call the server by a name that is
its own.
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .metrics import ServerMetrics
from .openai.errors import RequestError, internal_error
from .protocols import messages

ROUTES = (
    *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/models"),
    *("/health", "/metrics", "/"),
)
"""Routes that are counted by their name; all others are counted together."""
PREFLIGHT_SECONDS = "600"
CLIENT_GONE = 499
"""The status under which a request is counted whose client did not wait for any, as in nginx."""

LONGEST_PATH = 200
_log = logging.getLogger(__name__)
_requests = logging.getLogger("entropix_mlx.server.requests")
_requests.setLevel(logging.WARNING)  # for a log of JSON, each request is a record


@dataclass(frozen=True)
class Access:
    """Rules for who may ask."""

    key: str | None = None
    origins: tuple[str, ...] = ()
    """Origins whose pages may read answers; the server's own always may."""
    only_local: bool = True
    """Whether the server may only be called by a name of this machine: a page could point a name
    of its own at 127.0.0.1."""

    def check_key(self, headers: Mapping[str, str]) -> None:
        """Refuse a missing or wrong key, in a time that does not depend on the one given."""
        if self.key is None:
            return
        kind, _, given = headers.get("authorization", "").partition(" ")
        if not given and "x-api-key" in headers:  # as Anthropic's clients send it
            kind, given = "bearer", headers["x-api-key"]
        # A header is bytes, which Starlette shows as Latin-1; clients send é in that or in UTF-8.
        sent = sha256(given.encode("latin-1", "replace")).digest()
        keys = [sha256(self.key.encode(code, "ignore")) for code in ("utf-8", "latin-1")]
        fits = [hmac.compare_digest(sent, key.digest()) for key in keys]
        if not any(fits) or kind.lower() != "bearer":
            raise RequestError(
                "the API key is missing or wrong: send it as 'Authorization: Bearer KEY'",
                status=401,
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )

    def check_source(self, headers: Mapping[str, str]) -> None:
        """Refuse a page of another site, which asks on behalf of its visitor."""
        host = headers.get("host", "")
        if self.only_local and not _is_local(host):
            message = "this server answers to localhost and 127.0.0.1 only"
            raise RequestError(message, status=403, code="forbidden_host")
        if "origin" in headers and self.reader(headers) is None:
            message = "pages of this origin are not allowed: start the server with --allow-origin"
            raise RequestError(message, status=403, code="forbidden_origin")

    def reader(self, headers: Mapping[str, str]) -> str | None:
        """Return the origin of the page that asks, if it may read the answer."""
        host, origin = headers.get("host", ""), headers.get("origin")
        own = (f"http://{host}", f"https://{host}") if host else ()
        return origin if origin in (*own, *self.origins) or "*" in self.origins else None


@dataclass(frozen=True)
class Guard:
    """An ASGI application that lets requests into another one."""

    app: ASGIApp
    access: Access
    metrics: ServerMetrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        scope = {**scope, "path": _canonical(scope["path"])}
        headers = Headers(scope=scope)
        marked = _MarkedSend(send, self.access.reader(headers))
        began = time.perf_counter()
        try:
            self.access.check_source(headers)
            if scope["method"] == "OPTIONS" and "origin" in headers:
                await _preflight(headers)(scope, receive, marked)
            else:
                await self.app(scope, receive, marked)
        except RequestError as error:
            await error_response(error, scope["path"])(scope, receive, marked)
        except Exception:
            _log.exception("a request failed")
            if not marked.status:
                await error_response(internal_error(), scope["path"])(scope, receive, marked)
        finally:
            route = scope["path"] if scope["path"] in ROUTES else "other"
            self.metrics.request(route, marked.status or CLIENT_GONE)
            self._log(scope, marked, time.perf_counter() - began)

    def _log(self, scope: Scope, marked: _MarkedSend, seconds: float) -> None:
        fields = {
            "method": scope["method"],
            "path": scope["path"][:LONGEST_PATH],
            "status": marked.status or CLIENT_GONE,
            "seconds": round(seconds, 3),
            "client": (scope.get("client") or ("",))[0],
        }
        _requests.info("%(method)s %(path)s %(status)d", fields, extra={"fields": fields})


@dataclass
class _MarkedSend:
    """A `send` that adds headers for browsers, and keeps the status."""

    send: Send
    origin: str | None
    status: int = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(raw=list(message.get("headers", [])))
            headers.setdefault("x-content-type-options", "nosniff")
            if self.origin is not None:
                headers["access-control-allow-origin"] = self.origin
                headers["vary"] = "Origin"
            message = {**message, "headers": headers.raw}
        await self.send(message)


def error_response(error: RequestError, path: str) -> Response:
    """Return an error in the shape of the protocol that a path belongs to."""
    body = messages.describe_error(error) if path.startswith(messages.PATH) else error.body
    return JSONResponse(body, error.status, headers=error.headers)


def _canonical(path: str) -> str:
    """Return the path that a client means who adds a slash, or leaves /v1 out."""
    path = path.rstrip("/") or "/"
    return f"/v1{path}" if f"/v1{path}" in ROUTES else path


def _preflight(headers: Headers) -> Response:
    allowed = {
        "access-control-allow-methods": "GET, POST",
        "access-control-allow-headers": headers.get("access-control-request-headers", ""),
        "access-control-max-age": PREFLIGHT_SECONDS,
    }
    return Response(status_code=204, headers=allowed)


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _is_local(host: str) -> bool:
    name, port = host.rsplit(":", 1) if ":" in host and not host.endswith("]") else (host, "")
    return (not port or port.isdecimal()) and is_loopback(name)
