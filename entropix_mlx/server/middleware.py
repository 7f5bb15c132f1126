"""What surrounds every route: who may ask, which pages may read, and what a bug looks like."""

from __future__ import annotations

import logging

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .access import Access
from .metrics import Metrics
from .openai.errors import RequestError, internal_error

ROUTES = ("/v1/chat/completions", "/v1/completions", "/v1/models", "/health", "/metrics", "/")
"""Routes that are counted by their name; all others are counted together."""
PREFLIGHT_SECONDS = "600"

_log = logging.getLogger(__name__)


class Guard:
    """An ASGI application around another one."""

    def __init__(self, app: ASGIApp, access: Access, metrics: Metrics) -> None:
        self._app = app
        self._access = access
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or answer it here."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        watched = _Watched(send, self._shared_with(headers))
        try:
            self._access.check_source(headers)
            if scope["method"] == "OPTIONS" and "origin" in headers:
                await _preflight(headers)(scope, receive, watched)
            else:
                await self._app(scope, receive, watched)
        except RequestError as error:
            await error_response(error)(scope, receive, watched)
        except ClientDisconnect:
            return
        except Exception:
            _log.exception("a request failed")
            if not watched.status:
                await error_response(internal_error())(scope, receive, watched)
        finally:
            route = scope["path"] if scope["path"] in ROUTES else "other"
            self._metrics.request(route, watched.status)

    def _shared_with(self, headers: Headers) -> str | None:
        """Return the origin whose pages may read the answer."""
        origin = headers.get("origin")
        allowed = origin is not None and self._access.allows(origin, headers.get("host", ""))
        return origin if allowed else None


class _Watched:
    """A `send` that notes the status, and tells a browser which origin may read the answer."""

    def __init__(self, send: Send, origin: str | None) -> None:
        self.status = 0
        self._send = send
        self._origin = origin

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(raw=list(message.get("headers", [])))
            headers.setdefault("x-content-type-options", "nosniff")
            if self._origin is not None:
                headers["access-control-allow-origin"] = self._origin
                headers["vary"] = "Origin"
            message = {**message, "headers": headers.raw}
        await self._send(message)


def error_response(error: RequestError) -> Response:
    """Return an error in OpenAI's shape."""
    return JSONResponse(error.body, error.status, headers=error.headers)


def _preflight(headers: Headers) -> Response:
    """Answer a browser that asks whether a page may ask."""
    allowed = {
        "access-control-allow-methods": "GET, POST",
        "access-control-allow-headers": headers.get("access-control-request-headers", ""),
        "access-control-max-age": PREFLIGHT_SECONDS,
    }
    return Response(status_code=204, headers=allowed)
