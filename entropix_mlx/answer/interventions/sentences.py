"""Where a sentence ends.

A rule with a list of abbreviations rather than a library: a segmenter such as pysbd takes a whole
text, and here the question is asked again with every token of every rollout. What is not known yet
is waited for: `https://en.`, `self.` and `3.` end no sentence before a space has followed.
"""

from __future__ import annotations

import re

_MARK = re.compile(
    r"""(?: [.!?…]+ ["'”’»)\]*_]* (?=\s)     # a full stop and what closes after it, then a space
        |   [。！？]+ ["'”’」』）]*            # which scripts without spaces do not wait for
    )""",
    re.VERBOSE,
)
_TITLES = "mr|mrs|ms|mx|messrs|dr|prof|st|mt|gen|col|capt|lt|sgt|rev|hon|gov|sen|rep|sr|jr|hr|fr"
_MONTHS = "jan|feb|mar|apr|jun|jul|aug|sep|sept|oct|nov|dec"
_OTHERS = "vs|cf|viz|al|approx|fig|figs|eq|eqs|sec|ch|vol|eds|pp|ca|dept|est|bzw|ggf|vgl|str"
_ABBREVIATIONS = frozenset(f"{_TITLES}|{_MONTHS}|{_OTHERS}".split("|"))
"""Words after which a full stop is taken to be theirs, in lower case."""
_BEFORE_NUMBER = frozenset(("no", "nos", "nr", "p", "art"))
"""The same where a number follows: "No. 5"."""
_WORD = re.compile(r"[^\W\d_]+$")
_INITIALS = re.compile(r"(?:^|[^\w.])(?:(?:[^\W\d_]\.){2,}|[A-ZÀ-Þ]\.)$")
_LIST_MARKER = re.compile(r"^\s*(?:\d+|[A-Za-z])\.$")


def sentence_end(text: str, start: int = 0) -> int | None:
    """Return where the first sentence to end after a place in a text ends, or None if none does.

    A full stop ends a sentence where a space follows. It ends none after an abbreviation ("Mrs.",
    "e.g.", "J. K."), before a small letter ("approx. five"), or after the number or letter that
    begins a line ("1. Eggs").

    Args:
        text: what is there so far.
        start: index of the first character that may end a sentence.
    """
    for match in _MARK.finditer(text, start):
        if match[0] != "." or not _abbreviates(text, match.end()):
            return match.end()
    return None


def _abbreviates(text: str, end: int) -> bool:
    """Tell whether the full stop before a place is part of an abbreviation or a list's marker."""
    before = text[text.rfind("\n", 0, end) + 1 : end]
    following = text[end:].lstrip(" \t")[:1]
    if following.islower() or _LIST_MARKER.match(before) or _INITIALS.search(before):
        return True
    word = _WORD.search(before, 0, len(before) - 1)
    if word is None:
        return False
    name = word[0].lower()
    return name in _ABBREVIATIONS or (name in _BEFORE_NUMBER and following.isdigit())
