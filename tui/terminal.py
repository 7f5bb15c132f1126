"""What the terminal must be able to do before the app opens on it, and what if it goes away."""

from __future__ import annotations

import asyncio
import codecs
import os
import signal
import sys
from functools import partial
from typing import TYPE_CHECKING

from entropix_mlx.errors import PromptError

if TYPE_CHECKING:  # the checks come before what takes long to import
    from textual.app import App

CHECK_SECONDS = 1.0
"""Between two checks whether the terminal is still there."""


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


def take_any_bytes() -> None:
    """Have Textual show what is typed and is no UTF-8 as U+FFFD, where it would end the app."""
    from textual.drivers import linux_driver

    decoder = partial(codecs.getincrementaldecoder("utf-8"), errors="replace")
    linux_driver.getincrementaldecoder = lambda _: decoder  # type: ignore[attr-defined]


def end_with_terminal(app: App[None]) -> None:
    """End an app where its terminal is closed, or on a signal: as if the user had quit.

    A window that is closed sends SIGHUP to its shell, and not every program between passes it on.
    """
    if app.is_headless:
        return
    for number in (signal.SIGHUP, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, app.exit)

    keyboard = sys.__stdin__.fileno() if sys.__stdin__ else -1

    def check() -> None:
        if not os.isatty(keyboard):
            app.exit()

    if os.isatty(keyboard):
        app.set_interval(CHECK_SECONDS, check)
