"""What the terminal must be able to do before the app opens on it, and what if it goes away."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import signal
import sys
import termios
import threading
import time
from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING

from entropix_mlx.errors import PromptError

if TYPE_CHECKING:  # the checks come before what takes long to import
    from textual.app import App

CHECK_SECONDS = 1.0
"""Between two checks whether the terminal is still there."""
DEADLINE = 1.5
"""Seconds that an app has to end in, once its terminal is gone."""


def require_full_screen(instead: str) -> None:
    """Check that a terminal can show the app.

    Args:
        instead: what to do where it cannot, for the message.

    Raises:
        PromptError: it cannot move its cursor, or it does not take UTF-8.
    """
    if os.environ.get("TERM") == "dumb":
        raise PromptError(f"TERM=dumb names a terminal without a full screen: {instead}")
    encoding = getattr(sys.stdout, "encoding", None)
    if encoding and codecs.lookup(encoding).name != "utf-8":
        raise PromptError(
            f"the terminal UI draws in UTF-8, and this terminal's encoding is {encoding}:"
            f" set LANG to a UTF-8 locale, or {instead}"
        )


@cache
def all_keys() -> Callable[[], None]:
    """Have the terminal pass on Ctrl+S and Ctrl+Q, also before the first frame is drawn.

    Returns:
        restores the terminal; the same function at every call.
    """
    keyboard = sys.__stdin__.fileno() if sys.__stdin__ else -1
    try:
        flow, *others = before = termios.tcgetattr(keyboard)
        termios.tcsetattr(keyboard, termios.TCSANOW, [flow & ~termios.IXON, *others])
    except termios.error:  # no terminal
        return lambda: None

    def restore() -> None:
        with contextlib.suppress(termios.error):
            termios.tcsetattr(keyboard, termios.TCSANOW, before)

    return restore


def take_any_bytes() -> None:
    """Have Textual show what is typed and is no UTF-8 as U+FFFD, where it would end the app.

    See https://github.com/Textualize/textual/issues/6456.
    """
    from textual.drivers import linux_driver

    decoder = partial(codecs.getincrementaldecoder("utf-8"), errors="replace")
    linux_driver.getincrementaldecoder = lambda _: decoder  # type: ignore[attr-defined]


def follow_terminal(app: App[None]) -> None:
    """End an app within `DEADLINE` where its terminal is closed, or on SIGHUP or SIGTERM.

    A window that is closed sends SIGHUP to its shell, and not every program between passes it on.
    SIGCONT comes with SIGHUP; Textual would begin to draw again, with a second thread, and wait for
    ever for the first one. So SIGCONT does nothing here, and SIGTSTP suspends as Ctrl+Z does:
    `App.suspend` goes on by itself.
    """
    if app.is_headless:
        return
    loop, leaving = asyncio.get_running_loop(), threading.Event()

    def watch() -> None:
        keyboard = sys.__stdin__.fileno() if sys.__stdin__ else -1
        was_there = os.isatty(keyboard)
        while not leaving.wait(CHECK_SECONDS):
            if was_there and not os.isatty(keyboard):
                leaving.set()
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(app.exit)
        time.sleep(DEADLINE)
        os._exit(0)  # whatever the main thread waits for

    def suspend(*_: object) -> None:
        loop.call_soon_threadsafe(app.action_suspend_process)

    threading.Thread(target=watch, name="terminal", daemon=True).start()
    for number in (signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, lambda *_: leaving.set())
    signal.signal(signal.SIGTSTP, suspend)
    signal.signal(signal.SIGCONT, signal.SIG_DFL)
