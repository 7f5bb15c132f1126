"""``@file`` in a question: the file's text becomes part of the question."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from .. import limits
from ..errors import SessionError
from ..files import expanded

_NAMED = re.compile(r"(?<!\S)@(\S+)")
_TRAILING = ".,;:!?)"


def with_files(question: str) -> str:
    """Return a question followed by the text of each file that it names as ``@path``.

    A word such as ``@someone`` stays as it is unless there is a file of that name; a word with a
    slash or a suffix must be a file, and files must be texts within the limit.
    """
    files = {path: None for word in _NAMED.findall(question) if (path := _file(word))}
    return "\n\n".join([question, *(_quoted(path) for path in files)])


def _file(word: str) -> Path | None:
    """Return the file that a word names, also if a full stop or the like follows it."""
    for name in (word, word.rstrip(_TRAILING)):
        path = expanded(name, SessionError)
        with contextlib.suppress(OSError, ValueError):  # no name that a file could have
            if name and path.exists():
                return path
    name = word.rstrip(_TRAILING)
    if "/" in name or Path(name).suffix:
        raise SessionError(f"there is no file {name}: leave the @ out if you do not mean a file")
    return None


def _quoted(path: Path) -> str:
    text = limits.read_named(path, limits.ATTACHED_BYTES, SessionError)
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{path.name}:\n{fence}\n{text.rstrip()}\n{fence}"
