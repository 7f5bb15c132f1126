"""What the command line prints: results on stdout, everything else on stderr; and exit codes.

A shell, a daemon or cron may close the standard streams, point them at a full disk, or give them an
encoding that cannot spell what a model writes. None of that may end in a traceback, or in a wrong
message.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TextIO

from ...errors import OutputError
from ...files import reason
from ...records import printable, to_json

BUG = 1
"""The exit code of Python itself after a traceback."""
USAGE = 2
"""The exit code of a mistake that the user can mend."""
INTERRUPTED = 130
BROKEN_PIPE = 141
"""The exit code where nobody reads the output any more."""

LONGEST_MESSAGE = 1000
"""Characters of an error message; one that quotes a file or an argument could be endless."""

_library = logging.getLogger("entropix_mlx")


def prepare() -> None:
    """Make the standard streams safe to use, and print on stderr what the library logs.

    A closed descriptor is opened on /dev/null. Otherwise the next file that anybody opens gets its
    number: MLX, for one, takes 0 for a failure. Stdout is then opened for reading, so that writing
    to it fails as before; `sys.stdin` stays None, which says that nobody can answer.

    Characters that stdout cannot encode are replaced.
    """
    # Textual reads this once. At its 60 frames a second, a typed letter waits up to 33 ms for the
    # next one. Nothing is drawn where nothing has changed, so shorter ones cost nothing.
    os.environ.setdefault("TEXTUAL_FPS", "240")
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
    _library.setLevel(logging.INFO)
    _library.handlers = [_StderrHandler()]


class _StderrHandler(logging.Handler):
    """Prints log records; `sys.stderr` is looked up each time, since a full screen replaces it."""

    def emit(self, record: logging.LogRecord) -> None:
        report(record.getMessage())


def settle() -> None:
    """Drop what a stream holds and cannot write: Python would try once more when it exits."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def leave(code: int) -> NoReturn:
    """End this process at once, with everything printed.

    What a thread that used MLX leaves behind needs the interpreter, also after `join`: an ordinary
    end of the process would now and then abort in it.
    """
    settle()
    os._exit(code)


def write(text: str) -> None:
    """Print to stdout at once.

    Raises:
        OutputError, BrokenPipeError: as for `writing_stdout`.
    """
    with writing_stdout():
        try:
            sys.stdout.write(text)
        finally:
            sys.stdout.flush()


@contextlib.contextmanager
def writing_stdout() -> Iterator[None]:
    """Report what goes wrong while stdout is written.

    Raises:
        OutputError: stdout is closed, or the disk is full.
        BrokenPipeError: nobody reads it any more.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        closed = error.errno == errno.EBADF
        why = "it is closed; open it, or redirect it to a file" if closed else reason(error)
        raise OutputError(f"cannot write to stdout: {why}") from error


def write_json(record: Any, indent: int | None = None) -> None:
    """Print a JSON record and a line break to stdout at once; it can always be parsed again."""
    text = to_json(record, indent)
    if not (sys.stdout.encoding or "").lower().startswith("utf"):
        text = json.dumps(record, indent=indent)  # in ASCII
    write(text + "\n")


def shown(text: str) -> str:
    """Return a text for stdout: what a model, a file or a folder says is no command to a
    terminal."""
    return printable(text) if sys.stdout.isatty() else text


def report(text: str, end: str = "\n") -> None:
    """Print to stderr at once; where stderr takes nothing, that is no error."""
    with contextlib.suppress(OSError):
        print(text, end=end, file=sys.stderr, flush=True)


def report_error(message: str) -> None:
    """Print an error message to stderr, `shortened`: it may quote what the user wrote."""
    report(f"entropix: {shortened(message)}")


def info(text: str) -> None:
    """Print to stderr, unless --quiet is given."""
    _library.info("%s", text)


def set_verbose(verbose: bool) -> None:
    """Print what the library logs and what `info` gets, or warnings only."""
    _library.setLevel(logging.INFO if verbose else logging.WARNING)


def shortened(message: str) -> str:
    """Return a message that fits on a screen, without what a terminal would obey."""
    if len(message) > LONGEST_MESSAGE:
        half = LONGEST_MESSAGE // 2
        message = f"{message[:half]} … {message[-half:]}"
    return printable(message)


def check_screen(instead: str) -> None:
    """Raise an `EntropixError` where the terminal UI cannot run; it says what to do instead."""
    if not (sys.stdin and sys.stdin.isatty() and sys.stdout.isatty()):
        raise OutputError(f"the terminal UI needs a terminal: {instead}")
    from entropix_mlx.tui.terminal import require_full_screen

    require_full_screen(instead)


def use_colour(choice: str, stream: TextIO) -> bool:
    """Tell whether to print ANSI colours.

    An explicit choice wins over the variable NO_COLOR (no-color.org), that over what the stream is.
    """
    if choice != "auto":
        return choice == "always"
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def progress_bar(**form: Any) -> Any:
    """Return a bar of tqdm's on stderr: hidden by --quiet, and where stderr is no terminal."""
    from tqdm import tqdm

    hidden = None if _library.isEnabledFor(logging.INFO) else True
    return tqdm(file=sys.stderr, leave=False, disable=hidden, **form)


def progress(what: str, **form: Any) -> Callable[[int, int], None]:
    """Return a callback that shows, as a bar, how much is done of how much, until all is."""
    bar: Any = None

    def show(done: int, total: int) -> None:
        nonlocal bar
        bar = bar or progress_bar(desc=what, total=total, delay=0.1, **form)
        bar.update(done - bar.n)
        if done >= total:
            bar.close()
            bar = None

    return show
