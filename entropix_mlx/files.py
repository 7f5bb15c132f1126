"""Paths that users name, what goes wrong with them, and writing so that there is never half."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import IO, Any

from .errors import EntropixError, OutputError, brief

_FULL = (errno.ENOSPC, errno.EDQUOT)


def expanded(path: str | Path, error: type[Exception]) -> Path:
    """Return a path with a leading ``~`` or ``~user`` replaced by that home folder.

    Raises:
        error: that user has no home folder, or no file could have such a name.
    """
    try:
        found = Path(path).expanduser()
        os.lstat(found)
    except RuntimeError as cause:
        raise error(f"no home folder is known for {path}: write the path out") from cause
    except (OSError, ValueError) as cause:  # a ValueError: it holds a NUL
        if getattr(cause, "errno", errno.ENAMETOOLONG) == errno.ENAMETOOLONG:
            why = getattr(cause, "strerror", None) or cause
            raise error(f"no file can be called {brief(str(path))}: {why}") from cause
    return found


def check_target(target: Path) -> None:
    """Check that a file can be meant, before the work whose result it is to hold.

    Raises:
        OutputError: it is a folder, or its folder does not exist.
    """
    if os.path.isdir(target) or not os.path.isdir(os.path.realpath(target.parent)):
        raise OutputError(f"cannot write {target}: name a file in a folder that exists")


def keep_source(target: str | Path | None, source: str | Path) -> None:
    """Check that what is about to be written would not replace the file that it is made from.

    Raises:
        OutputError: both names lead to the same file.
    """
    try:
        same = target is not None and os.path.samefile(target, source)
    except (OSError, ValueError):  # one is not there, so they differ
        same = False
    if same:
        raise OutputError(f"{target} is what is read: write to another file")


@contextmanager
def reading(path: str | Path, error: type[EntropixError]) -> Iterator[None]:
    """Report what goes wrong while a file is read as "cannot read PATH: …".

    Raises:
        error: in place of any OSError, and where the content is not UTF-8.
    """
    try:
        yield
    except UnicodeDecodeError as cause:
        line = cause.object.count(b"\n", 0, cause.start) + 1
        raise error(f"{path}, line {line} is not text in UTF-8: {cause.reason}") from cause
    except (OSError, ValueError) as cause:  # a ValueError: a NUL in the name
        why = getattr(cause, "strerror", None) or cause
        raise error(f"cannot read {path}: {why}") from cause


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


def write_line(file: FileIO, line: str) -> None:
    """Write a line to an unbuffered file; where the disk gets full, nothing of it is left there.

    Raises:
        OSError: it cannot be written.
    """
    rest = memoryview(f"{line}\n".encode())
    begun = 0
    try:
        while rest[begun:]:
            begun += file.write(rest[begun:])
    except OSError:
        with suppress(OSError):  # a pipe or a device takes nothing back
            file.truncate(file.seek(-begun, os.SEEK_CUR))
        raise


def reason(error: OSError) -> str:
    """Return why a file or folder cannot be written, with advice where there is any."""
    if error.errno in _FULL:
        return "the disk is full; make room or choose another one"
    if error.errno == errno.ENXIO:
        return "nobody reads that pipe"
    return error.strerror or str(error)


def write_whole(path: str | Path, text: str | bytes) -> None:
    """Write a file; if that is interrupted, an older one stays as it was.

    A text is written in UTF-8, with ? for half of a surrogate pair.

    The content goes to a new file beside the old one, which it replaces once it is on the disk. A
    link is followed, and a file that is replaced passes its mode on. A device or a pipe is no file
    to replace: the content is written to it directly.

    Raises:
        OSError: it cannot be written.
    """
    content = text.encode("utf-8", "replace") if isinstance(text, str) else text
    try:
        old = os.stat(path)
    except FileNotFoundError:
        old = None
    if old and stat.S_ISDIR(old.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if old and not stat.S_ISREG(old.st_mode):
        with open(path, "wb", opener=without_waiting) as file:
            file.write(content)
    else:
        _replace(Path(os.path.realpath(path)), content, old.st_mode if old else None)


def without_waiting(path: str, flags: int) -> int:
    """Open a path, as an `opener` of `open`; it is an error to write to a pipe that nobody
    reads."""
    descriptor = os.open(path, flags | os.O_NONBLOCK, 0o666)
    os.set_blocking(descriptor, True)
    return descriptor


def _replace(path: Path, content: bytes, mode: int | None) -> None:
    with written_aside(path) as unfinished, open(unfinished, "xb") as file:
        if mode is not None:
            os.fchmod(file.fileno(), stat.S_IMODE(mode))
        file.write(content)


@contextmanager
def written_aside(path: Path) -> Iterator[Path]:
    """Yield the path of a new file beside another one, which it replaces once it is on the disk.

    Raises:
        OSError: it cannot be written, or was not.
    """
    unfinished = path.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        yield unfinished
        with open(unfinished, "rb+") as file:
            flush_to_disk(file)
        unfinished.replace(path)
    finally:
        with suppress(OSError):  # as where the folder is read-only
            unfinished.unlink(missing_ok=True)


def flush_to_disk(file: IO[Any]) -> None:
    """Wait until a file is on the disk: only then may it take the place of an older one."""
    file.flush()
    os.fsync(file.fileno())
