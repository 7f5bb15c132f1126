"""Downloading a file of a known size and digest, which goes on where it was stopped."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from ..errors import DownloadError
from ..files import writing
from .urls import open_url, reading_from, without_password

CHUNK = 2**18
KEPT = ". What came is kept: the same command goes on with the rest"

OnProgress = Callable[[int, int], None]
"""Is called with the bytes that are there, and all."""


@contextmanager
def downloaded(
    url: str,
    target: Path,
    nbytes: int,
    sha256: str,
    on_progress: OnProgress | None = None,
    token: str | None = None,
) -> Iterator[IO[bytes]]:
    """Download a file, and give it open; no other program can download it meanwhile.

    What an earlier call began is finished, if the server can send a part of a file.

    Args:
        token: shown to the URL's own host only.

    Raises:
        DownloadError: it cannot be downloaded or written, or is not the file that was expected.
    """
    with writing(target, DownloadError):
        target.parent.mkdir(parents=True, exist_ok=True)
        file = open(target, "a+b")  # noqa: SIM115
    with file:
        _lock(file, target)
        _complete(file, url, target, nbytes, on_progress, token)
        file.seek(0)
        if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
            file.truncate(0)
            raise DownloadError(
                f"{without_password(url)} is not the file that was expected (its SHA-256 differs),"
                " and was removed: try again, or with another package index (PIP_INDEX_URL)"
            )
        yield file


def _lock(file: IO[bytes], target: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise DownloadError(f"another program is downloading {target}: wait for it") from error
    except OSError:  # a network file system without locks
        return


def _complete(
    file: IO[bytes],
    url: str,
    target: Path,
    nbytes: int,
    on_progress: OnProgress | None,
    token: str | None,
) -> None:
    report = on_progress or (lambda done, total: None)
    done = file.seek(0, os.SEEK_END)
    if done >= nbytes:
        return
    _check_room(target, nbytes - done)
    asked = {"Range": f"bytes={done}-"} if done else {}
    with reading_from(url, KEPT), open_url(url, most=nbytes, headers=asked, token=token) as answer:
        if done and not _begins_at(answer, done):
            done = 0
            file.truncate(0)
        while done < nbytes:
            report(done, nbytes)
            chunk = answer.read1(min(CHUNK, nbytes - done))
            if not chunk:
                raise OSError(f"it ended after {done:,} of {nbytes:,} bytes")
            with writing(target, DownloadError):
                file.write(chunk)
            done += len(chunk)
    report(done, nbytes)


def _check_room(target: Path, nbytes: int) -> None:
    free = shutil.disk_usage(target.parent).free
    if free < nbytes:
        raise DownloadError(
            f"the disk of {target.parent} has {free / 1e9:.1f} GB left, and {nbytes / 1e9:.1f} GB"
            " are still to come: make room first"
        )


def _begins_at(answer: Any, begin: int) -> bool:
    """Return whether a server sends the part that it was asked for, and not the whole file."""
    is_part = getattr(answer, "status", None) == 206
    return is_part and answer.headers.get("Content-Range", "").startswith(f"bytes {begin}-")
