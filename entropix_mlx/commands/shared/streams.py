"""The three standard streams, in whatever state the program was started with them.

A shell, a daemon or cron may close them, point them at a full disk, or give them an encoding that
cannot spell what a model writes. None of that may end in a traceback, or in a wrong message.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ...errors import OutputError
from ...files import reason


def prepare() -> None:
    """Make the standard streams safe to use.

    A closed descriptor is opened on /dev/null. Otherwise the next file that anybody opens gets its
    number: MLX, for one, takes 0 for a failure. Stdout is then opened for reading, so that writing
    to it fails as before; `sys.stdin` stays None, which says that nobody can answer.

    Characters that stdout cannot encode are replaced.
    """
    for descriptor, flags in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, flags)  # gets the lowest free number, which is this one
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors != "backslashreplace":
            stream.reconfigure(errors="replace")


@contextmanager
def written() -> Iterator[None]:
    """Report what stdout does not take as an error, and see to it that everything was written.

    Raises:
        OutputError: stdout cannot be written.
        BrokenPipeError: nobody reads it any more.
    """
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        closed = error.errno == errno.EBADF
        why = "it is closed; open it, or redirect it to a file" if closed else reason(error)
        raise OutputError(f"cannot write to stdout: {why}") from error


def settle() -> None:
    """Drop what a stream holds and cannot write: Python would try once more when it exits."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
