"""Around every route: who may ask, which pages may ask, and errors as JSON.

A request must show the key, come from no other site's page, and call the server by a name that is
its own.
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

from h11 import LocalProtocolError
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .metrics import ServerMetrics
from .openai.errors import RequestError, internal_error
from .protocols import messages

OPEN, FILES = ("/", "/health"), "/web/"
"""Where no key is asked for: the page, which asks for it, and what it loads."""
CLIENT_GONE = 499
"""The status under which a request is counted whose client did not wait for any, as in nginx."""
LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]", "::1")
"""Names of this machine: a page could point a name of its own at 127.0.0.1."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Access:
    """Rules for who may ask."""

    key: str | None = None
    origins: tuple[str, ...] = ()
    """Origins whose pages may ask and read answers; the server's own always may."""
    only_local: bool = True
    """Whether the server may only be called by one of `LOCAL_HOSTS`."""

    def check_key(self, headers: Mapping[str, str]) -> None:
        """Refuse a missing or wrong key, in a time that does not depend on the one given.

        Raises:
            RequestError: it is.
        """
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
            message = "the API key is missing or wrong: send it as 'Authorization: Bearer KEY'"
            raise RequestError(message, status=401, code="invalid_api_key")

    def check_origin(self, headers: Mapping[str, str]) -> None:
        """Refuse a page of another site, which asks on behalf of its visitor.

        Raises:
            RequestError: it is one.
        """
        host, origin = headers.get("host", ""), headers.get("origin")
        own = (f"http://{host}", f"https://{host}")
        if origin not in (None, *own, *self.origins) and "*" not in self.origins:
            message = "pages of this origin are not allowed: start the server with --allow-origin"
            raise RequestError(message, status=403, code="forbidden_origin")


@dataclass(frozen=True)
class Guard:
    """A middleware that counts responses, refuses who may not ask, and reports faults."""

    app: ASGIApp
    access: Access
    metrics: ServerMetrics
    routes: frozenset[str]
    """The paths that are counted by their names; all others are counted together."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, headers, status = scope["path"], Headers(scope=scope), 0

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            self.access.check_origin(headers)
            if not (path in OPEN or path.startswith(FILES)):
                self.access.check_key(headers)
            await self.app(scope, receive, noted)
        except RequestError as error:
            await error_response(error, path)(scope, receive, noted)
        except LocalProtocolError:
            pass  # what followed was no HTTP: uvicorn has refused the request already
        except Exception:
            _log.exception("a request failed")
            if not status:
                await error_response(internal_error(), path)(scope, receive, noted)
        finally:
            route = path if path in self.routes else "other"
            self.metrics.requests.labels(route, status or CLIENT_GONE).inc()


def error_response(error: RequestError, path: str) -> Response:
    """Return an error in the shape of the protocol that a path belongs to."""
    body = messages.describe_error(error) if path.startswith(messages.PATH) else error.body
    return JSONResponse(body, error.status, headers=error.headers)


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
