"""Where a sentence ends."""

from __future__ import annotations

import re

_MARK = re.compile(
    r"""(?: [.!?…]+ ["'”’»)\]*_]* (?=\s|$)   # a full stop and what closes after it, then a space
        |   [。！？]+ ["'”’」』）]*            # which scripts without spaces do not wait for
    )""",
    re.VERBOSE,
)
_NUMBER = re.compile(r"\d\.$")
_LIST_MARKER = re.compile(r"^\s*\d+\.$", re.MULTILINE)


def sentence_end(text: str, start: int = 0) -> int | None:
    """Return where the first sentence to end after a place in a text ends, or None if none does.

    The full stop inside a number, or after one that begins a line, ends none; one after a digit at
    the very end of the text may yet turn out to be inside a number.

    Args:
        text: what is there so far.
        start: index of the first character that may end a sentence.
    """
    for match in _MARK.finditer(text, start):
        before = text[: match.end()]
        if _NUMBER.search(before):
            if match.end() == len(text):
                return None
            line = before[before.rfind("\n") + 1 :]
            if _LIST_MARKER.match(line):
                continue
        return match.end()
    return None
