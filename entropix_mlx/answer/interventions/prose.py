"""Where prose may be interrupted: between two sentences or lines, or inside a sentence.

Text that is no prose is recognised by its form, line by line, and never interrupted:

- code: between fences, indented by four spaces or a tab, or lines with the signs of code;
- inline code, emphasis, brackets and quotations that are not closed yet;
- poems: paragraphs whose lines end inside sentences;
- tables, headings, list items, block quotes; HTML and XML, until what was opened is closed;
- JSON and other texts in braces, until they are closed; formulas;
- addresses, and numbers: neither the dot of `example.com` nor that of `3.14` ends a sentence.

In doubt a text is no prose: where nothing is inserted, nothing is broken.

`sentence_end` finds the end of a sentence by a rule and a list of abbreviations rather than with a
library: a segmenter such as pysbd takes a whole text, and here the question is asked again with
every token of every branch. `asks_for` looks for words in what a prompt asks for.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from enum import StrEnum
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # an answer is run without MLX, too
    from mlx_lm.tokenizer_utils import TokenizerWrapper

LEAST_WORDS = 3
"""A sentence of fewer words says too little about its surroundings."""


class Place(StrEnum):
    """Where a text may be inserted."""

    SENTENCE = "sentence"
    """After the end of a sentence, before the space that follows it."""
    LINE = "line"
    """At the start of a line, after a line that ended with a sentence."""
    CLAUSE = "clause"
    """After a comma, semicolon or dash."""
    WORD = "word"
    """Between two words."""


ALLOWED = {
    "sentence": frozenset({Place.SENTENCE, Place.LINE}),
    "clause": frozenset({Place.SENTENCE, Place.LINE, Place.CLAUSE}),
    "word": frozenset(Place),
}
"""The places of each setting, the strictest setting first."""

_FENCE = re.compile(r"\s{0,3}(`{3,}|~{3,})")
_STRUCTURE = re.compile(
    r"""\s*(?: [-*+•–]\s | \(?\d+[.)](?:\s|$) | [A-Za-z][.)]\s | \#{1,6}(?:\s|$) | > | \| | [{\[<] )
      | \ {4} | \t | \s*"[^"]*"\s*:
    """,
    re.VERBOSE,
)
"""How a line begins that is a list item, a heading, a table, a quote, markup, JSON or code."""
_CODE = re.compile(r"[{}=<>\\;^~#@|]|\w_\w|\w\(|\(\)|::|->|//|\+\+|&\w+|\$(?!\d)")
"""Signs that stand in code and formulas, and hardly in prose."""
_INLINE = re.compile(r"`[^`]*`")
_TAG = re.compile(r"<(/?)([A-Za-z][\w-]*)([^<>]*?)(/?)>")
_VOID = re.compile(
    "area|base|br|col|embed|hr|img|input|link|meta|source|track|wbr|think", re.IGNORECASE
)
"""Tags that open nothing; `think` is what some models write around their reasoning, in prose."""
_REASONING = re.compile(r"</?think>")
_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?")
_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")
"""Letters of scripts that put no space between words."""
_ADDRESS = re.compile(r"\w[.@]\w|/|www\.")
_PAIRS = (("(", ")"), ("“", "”"), ("「", "」"), ("『", "』"), ("«", "»"))
_CLAUSE_MARKS = (",", ";", " –", " —", "—", "，", "、", "；")
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
_LAST_WORD = re.compile(r"[^\W\d_]+$")
_INITIALS = re.compile(r"(?:^|[^\w.])(?:(?:[^\W\d_]\.){2,}|[A-ZÀ-Þ]\.)$")
_LIST_MARKER = re.compile(r"^\s*(?:\d+|[A-Za-z])\.$")
LEAST_HYPHENATEDS_OF_A_TURN = 2
"""A turn of fewer words is the mere head of one, such as "assistant"."""
_HYPHENATED = re.compile(r"\w+(?:-\w+)*")


class Surroundings:
    """The text of an answer so far, as far as it says where it may be interrupted.

    It depends on the text alone, not on the pieces in which that came.
    """

    def __init__(self) -> None:
        self._line = ""
        self._fence = ""
        """The mark that opened a block of code; empty outside."""
        self._formula = False
        self._open_tags = 0
        self._open_braces = 0
        self._sentence_before = False
        """Whether the last line that is not blank is prose, and ends with a sentence."""
        self._verse = False
        """Whether lines of the paragraph end inside sentences, as those of a poem do."""

    def add(self, text: str) -> None:
        *complete, rest = (self._line + text).split("\n")
        for line in complete:
            self._end_line(line)
        self._line = rest

    def place(self, following: str) -> Place | None:
        """Return what place the end of the text is; None if it may not be interrupted there.

        Args:
            following: the beginning of what would stand there otherwise.
        """
        if self._inside():
            return None
        if not self._line.strip():
            begins = self._sentence_before and not self._line and _begins_sentence(following)
            return Place.LINE if begins else None
        if self._verse or not _is_prose(self._line):
            return None
        return _place_in(self._line, following)

    def _inside(self) -> bool:
        return bool(self._fence or self._formula or self._open_tags > 0 or self._open_braces > 0)

    def _end_line(self, line: str) -> None:
        fence = _FENCE.match(line)
        if self._fence:
            if fence and fence[1].startswith(self._fence) and not line[fence.end() :].strip():
                self._fence = ""
            self._sentence_before = False
            return
        if fence:
            self._fence, self._sentence_before = fence[1], False
            return
        bare = _INLINE.sub("", line)
        self._formula ^= (bare.count("$$") + bare.count(r"\[") + bare.count(r"\]")) % 2 == 1
        self._open_braces = max(0, self._open_braces + bare.count("{") - bare.count("}"))
        for closes, name, _, closed in _TAG.findall(bare):
            if not (_VOID.fullmatch(name) or closed):
                self._open_tags = max(0, self._open_tags + (-1 if closes else 1))
        ended = line.rstrip()
        if ended:
            prose = not self._inside() and _is_prose(ended)
            sentence = prose and _ends_sentence(ended)
            self._sentence_before = sentence and not self._verse
            self._verse |= prose and not sentence and not ended.endswith(":")
        else:
            self._verse = False


def _is_prose(line: str) -> bool:
    if _STRUCTURE.match(line) or _FENCE.match(line):
        return False
    bare = _REASONING.sub("", _INLINE.sub("", line))
    signs = bare.replace("**", "\0")
    if any(signs.count(sign) % 2 for sign in ('"', "*", "\0")):
        return False
    if "`" in bare or _CODE.search(bare):
        return False
    return all(bare.count(opening) == bare.count(closing) for opening, closing in _PAIRS)


def _place_in(line: str, following: str) -> Place | None:
    unspaced = bool(_UNSPACED.match(following))
    if not (following.startswith(" ") or unspaced):
        return None
    last = line.rsplit(maxsplit=1)[-1]
    if line != line.rstrip() or _ADDRESS.search(last.rstrip(".,;:!?")):
        return None
    if _ends_sentence(line):
        return Place.SENTENCE if _begins_sentence(following) else None
    goes_on = following.lstrip(" ")[:1].isalpha() and _long_enough(line)
    if goes_on and line.endswith(_CLAUSE_MARKS):
        return Place.CLAUSE
    return Place.WORD if goes_on and line[-1].isalpha() and not unspaced else None


def _ends_sentence(line: str) -> bool:
    begin, end = 0, sentence_end(line + " ")
    while end is not None and end < len(line):
        begin, end = end, sentence_end(line + " ", end)
    return end is not None and _long_enough(line[begin:])


def _long_enough(text: str) -> bool:
    words = len(_WORD.findall(_UNSPACED.sub("", text))) + len(_UNSPACED.findall(text))
    return words >= LEAST_WORDS


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


def asks_for(phrases: Collection[str], tokenizer: TokenizerWrapper, prompt: Sequence[int]) -> bool:
    """Tell whether the request of a prompt holds one of some words or phrases, whatever their case.

    The request is the last turn of a chat, between whose turns special tokens stand. A prompt
    without any is a request as a whole.
    """
    asked = _spaced(_last_turn(tokenizer, prompt)) if phrases else ""
    return any(_spaced(_words(phrase)) in asked for phrase in phrases)


def _spaced(words: Sequence[str]) -> str:
    return f" {' '.join(words)} "


def _words(text: str) -> list[str]:
    return _HYPHENATED.findall(text.casefold())


def _last_turn(tokenizer: TokenizerWrapper, prompt: Sequence[int]) -> list[str]:
    special = frozenset(tokenizer.all_special_ids)
    turns = [list(turn) for marks, turn in groupby(prompt, special.__contains__) if not marks]
    for turn in reversed(turns):
        words = _words(tokenizer.decode(turn))
        if len(words) >= LEAST_HYPHENATEDS_OF_A_TURN:
            return words
    return []
