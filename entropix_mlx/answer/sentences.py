"""Where a text may be interrupted: behind a sentence or a line, outside blocks of code.

`sentence_end` finds the end of a sentence by a rule and a list of abbreviations rather than with a
library: a segmenter such as pysbd takes a whole text, and here the question is asked again with
every token of every branch.
"""

from __future__ import annotations

import re

_FENCE = re.compile(r"\s{0,3}(`{3,}|~{3,})")
_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")
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
_BEFORE_NUMBER = frozenset(("no", "nos", "nr", "p", "art"))  # "No. 5"
_LAST_WORD = re.compile(r"[^\W\d_]+$")
_INITIALS = re.compile(r"(?:^|[^\w.])(?:(?:[^\W\d_]\.){2,}|[A-ZÀ-Þ]\.)$")
_LIST_MARKER = re.compile(r"^\s*(?:\d+|[A-Za-z])\.$")


class Lines:
    """The text of an answer so far, in whatever pieces it came: its last line, and whether that is
    inside a block of code."""

    def __init__(self) -> None:
        self.last = ""
        self._fence = ""  # the mark that opened a block of code; empty outside
        self._begun = False

    def add(self, text: str) -> None:
        *complete, rest = (self.last + text).split("\n")
        for line in complete:
            self._end(line)
        self.last = rest

    def may_be_interrupted(self, following: str) -> bool:
        """Tell whether a sentence or a line has just ended, and prose follows.

        Args:
            following: the beginning of what would stand there otherwise.
        """
        if self._fence or not _begins_sentence(following):
            return False
        if not self.last.strip():
            return self._begun and not self.last
        spaced = following.startswith(" ") or bool(_UNSPACED.match(following))
        return spaced and _ends_sentence(self.last)

    def _end(self, line: str) -> None:
        self._begun |= bool(line.strip())
        fence = _FENCE.match(line)
        if fence is None:
            return
        if not self._fence:
            self._fence = fence[1]
        elif fence[1].startswith(self._fence) and not line[fence.end() :].strip():
            self._fence = ""


def _ends_sentence(line: str) -> bool:
    end = sentence_end(line + " ")
    while end is not None and end < len(line):
        end = sentence_end(line + " ", end)
    return end is not None


def _begins_sentence(following: str) -> bool:
    """Tell whether a piece of text looks like the start of a sentence: no digit, sign or tail."""
    first = following.strip()[:1]
    return first.isalpha() and not first.islower()


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
    word = _LAST_WORD.search(before, 0, len(before) - 1)
    if word is None:
        return False
    name = word[0].lower()
    return name in _ABBREVIATIONS or (name in _BEFORE_NUMBER and following.isdigit())
