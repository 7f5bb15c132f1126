"""Opening web addresses and ``file:`` URLs, as package indexes have them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from .. import limits
from ..errors import DownloadError, first_line
from .pip_options import pip_option

if TYPE_CHECKING:
    import ssl
    from urllib.request import Request

SECONDS = 30
"""How long a server may be silent."""


def open_url(url: str, *, most: int, headers: Mapping[str, str], token: str | None = None) -> Any:
    """Open a URL, for a local folder its ``index.html``, to read bytes from it.

    Args:
        url: a user name and a password in it, and the token, are sent to its own host only.
        most: the size of a local file at most.
        headers: what a server is asked with; a local file always begins at its beginning.

    Raises:
        OSError: it cannot be opened; that includes all that a server refuses.
        ValueError: it is no such URL.
    """
    from urllib.error import HTTPError
    from urllib.request import urlopen

    parts = urlsplit(url)
    if parts.scheme == "file":
        path = Path(unquote(parts.path))
        return limits.open_regular(path / "index.html" if path.is_dir() else path, most)
    if parts.scheme not in ("http", "https"):
        raise ValueError("only https, http and file are read")
    try:
        return urlopen(_request(url, headers, token), timeout=SECONDS, context=_certificates())
    except HTTPError as error:
        error.close()
        raise


def _request(url: str, headers: Mapping[str, str], token: str | None) -> Request:
    from base64 import b64encode
    from urllib.request import Request

    request = Request(without_password(url), headers=dict(headers))
    parts = urlsplit(url)
    secret = f"Bearer {token}" if token else None
    if parts.username is not None:
        account = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        secret = f"Basic {b64encode(account.encode()).decode('ascii')}"
    if secret is not None:
        request.add_unredirected_header("Authorization", secret)
    return request


def _certificates() -> ssl.SSLContext:
    """Return the machine's certificates, certifi's, and those that pip is told of.

    A Python on macOS may know none of its own.
    """
    import ssl

    import certifi

    context = ssl.create_default_context()
    context.load_verify_locations(certifi.where())
    if own := pip_option("cert"):
        context.load_verify_locations(own)
    return context


@contextmanager
def reading_from(url: str, advice: str = "") -> Iterator[None]:
    """Report what goes wrong with a URL as "cannot download URL: …".

    Raises:
        DownloadError: in place of any error of the network, or of a local file.
    """
    from http.client import HTTPException

    try:
        yield
    except (OSError, HTTPException, ValueError) as error:
        why = getattr(error, "reason", None) or getattr(error, "strerror", None)
        message = f"cannot download {without_password(url)}: {why or first_line(error)}{advice}"
        raise DownloadError(message) from error


def without_password(url: str) -> str:
    """Return a URL as it may be shown."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return url.rpartition("@")[2]
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
