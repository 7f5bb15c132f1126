"""What the terminal must be able to do before the app opens on it."""

from __future__ import annotations

import codecs
import os
import sys

from entropix_mlx.errors import PromptError


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
