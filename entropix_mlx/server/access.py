"""Who may ask: the key, the origin of a page, and the name under which the server is called."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

from .openai.errors import RequestError


@dataclass(frozen=True)
class Access:
    """What a request must show."""

    key: str | None = None
    origins: tuple[str, ...] = ()
    """Origins whose pages may read answers; the server's own always may."""
    only_local: bool = True
    """Whether the server is to be called by a name of this machine alone. Otherwise a page could
    point a name of its own at 127.0.0.1, and would count as the server's own."""

    def check_key(self, headers: Mapping[str, str]) -> None:
        """Check the key, in a time that does not depend on what was given.

        Raises:
            RequestError: it is missing or wrong.
        """
        if self.key is None:
            return
        kind, _, given = headers.get("authorization", "").partition(" ")
        digests = [sha256(text.encode("utf-8", "replace")).digest() for text in (given, self.key)]
        if not hmac.compare_digest(*digests) or kind.lower() != "bearer":
            raise RequestError(
                "the API key is missing or wrong: send it as 'Authorization: Bearer KEY'",
                status=401,
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )

    def check_source(self, headers: Mapping[str, str]) -> None:
        """Check that no page of another site asks in the name of its visitor.

        Raises:
            RequestError: one does.
        """
        host = headers.get("host", "")
        if self.only_local and not _is_local(host):
            message = "this server answers to localhost and 127.0.0.1 only"
            raise RequestError(message, status=403, code="forbidden_host")
        origin = headers.get("origin")
        if origin is not None and not self.allows(origin, host):
            message = "pages of this origin may not ask: start the server with --allow-origin"
            raise RequestError(message, status=403, code="forbidden_origin")

    def allows(self, origin: str, host: str) -> bool:
        """Tell whether pages of an origin may read answers."""
        own = host and origin in (f"http://{host}", f"https://{host}")
        return bool(own) or origin in self.origins or "*" in self.origins


def is_loopback(host: str) -> bool:
    """Tell whether a host names this machine and nothing else."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _is_local(host: str) -> bool:
    name, port = host.rsplit(":", 1) if ":" in host and not host.endswith("]") else (host, "")
    return (not port or port.isdecimal()) and is_loopback(name)
