"""Who may ask: a client must show the key, and be no page of another site."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

from .errors import RequestError


@dataclass(frozen=True)
class Access:
    """Rules for who may ask."""

    key: str | None = None
    origins: tuple[str, ...] = ()
    """Origins whose pages may ask and read answers; the server's own always may."""
    only_local: bool = True
    """Whether the server may only be called by a name of this machine."""

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


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
