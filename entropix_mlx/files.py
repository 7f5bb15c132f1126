"""Paths that users name, and writing files so that there is never half of one."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import EntropixError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def expanded(path: str | Path, error: type[Exception]) -> Path:
    """Return a path with a leading ``~`` or ``~user`` replaced by that home folder.

    Raises:
        error: that user has no home folder.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as cause:
        raise error(f"no home folder is known for {path}: write the path out") from cause


@contextmanager
def writing(path: str | Path, error: type[EntropixError]) -> Iterator[None]:
    """Report what goes wrong while a file or folder is written as "cannot write PATH: …".

    Raises:
        error: in place of any OSError.
    """
    try:
        yield
    except OSError as cause:
        raise error(f"cannot write {path}: {reason(cause)}") from cause


def reason(error: OSError) -> str:
    """Return why a file or folder cannot be written, with advice where there is any."""
    if error.errno in _FULL:
        return "the disk is full; make room or choose another one"
    return error.strerror or str(error)


def write_whole(path: str | Path, text: str) -> None:
    """Write a text file; if that is interrupted, an older file stays as it was.

    Raises:
        OSError: it cannot be written.
    """
    path = Path(path)
    if not path.name or path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
