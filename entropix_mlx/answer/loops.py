"""Loops: an answer that only repeats itself is ended, or else it would fill its limit.

    tokens   A B C D E F   C D E F   C D E F   C D E F   …
    period       4         the loop begins here: from now on, each token is that one period before

How much may be repeated depends on what it is: a refrain may stand twice in a row and a short line
many times. Rows of signs and digits belong to tables and pictures, and code repeats its lines more
than prose does. A sentence that comes again and again as the next item of a list, or with another
number in it, is a loop, too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

RUN = 4
"""Tokens in a row by which a period is noticed."""
REPEATED = 64
"""Tokens, from the beginning of a loop, after which it ends if that is more than one period."""
IN_CODE, WITHOUT_WORDS = 3, 8
"""How many times as long such loops may be: pages have six equal cards, and grids a hundred
zeros. What is repeated of code inside a line, or with a blank line, is neither, and what assigns
or tests has no reason to come again, unless it assigns from its own value."""
SENTENCE = 5
"""Words of each item that is repeated in a list, at least: names and blanks may come again."""
LONG_SENTENCE = 10
"""Words for each number elsewhere in what is repeated, at least: tables and series have fewer."""
NEW = 3
"""Tokens that were said shortly before for which one makes up that was not."""
COUNTER = -1
"""Stands for a number, in place of its tokens."""

_LETTER = re.compile(r"[^\W\d_]")
_WORD = re.compile(r"[^\W\d_]{3,}")
_BREAK = re.compile(r"\d+|\n+")
"""What verses, tables and forms have more of than prose."""
_FENCE = "```"
_ASSIGNS = re.compile(
    r"(?<![\w.])([\w.]+)\]? ?=(?![=>])(?!.*(?<![\w.])\1\b)|\b(?:elif|else if|case|import) "
)


class LoopDetector:
    """Finds the loop that a text is in, in constant time a token on average."""

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._tokens: list[int] = []
        self._known: dict[int, str] = {}
        self._plain, self._items, self._numbers = Repetition(), Repetition(), Repetition()
        self._line_begins = True
        """Whether the line has no letter yet: a number there is that of an item."""

    def add(self, token: int) -> bool:
        """Return whether the text is in a loop with its next token."""
        self._tokens.append(token)
        if token not in self._known:
            self._known[token] = self._decode([token])
        text = self._known[token]
        *_, line = text.rpartition("\n")
        self._line_begins = (self._line_begins or line != text) and not _LETTER.search(line)
        number = text.strip().isdecimal()
        self._plain.add(token)
        self._items.count(token, number and self._line_begins)
        self._numbers.count(token, number)
        return (
            self._ends(self._plain, 0)
            or self._ends(self._items, SENTENCE)
            or self._ends(self._numbers, LONG_SENTENCE)
            or self._says_little_else()
        )

    def _says_little_else(self) -> bool:
        """Return whether prose repeats itself with a word changed or a line break here and
        there."""
        if self._plain.familiar < REPEATED:
            return False
        self._plain.familiar = 0
        text = self._decode(self._tokens[-REPEATED:])
        least = max(REPEATED // 3, LONG_SENTENCE * len(_BREAK.findall(text)))
        return len(_WORD.findall(text)) >= least and self._is_prose

    def _ends(self, repetition: Repetition, words: int) -> bool:
        if repetition.repeated < repetition.enough:
            return False
        if not repetition.judged:
            repetition.enough *= self._patience(repetition, words)
            repetition.judged = True
        return repetition.repeated >= repetition.enough

    @property
    def _is_prose(self) -> bool:
        return self._decode(self._tokens).count(_FENCE) % 2 == 0

    def _patience(self, repetition: Repetition, least: int) -> float:
        """Return how many times as long a repetition may be, with so many words a number."""
        own = [token for token in repetition.symbols[-repetition.period :] if token != COUNTER]
        text, numbers = self._decode(own), repetition.period - len(own)
        words = _WORD.findall(text)
        if len(words) < least * numbers:
            return math.inf
        if not words:
            return WITHOUT_WORDS
        if self._is_prose:
            return 1
        if numbers and least == LONG_SENTENCE:
            return math.inf
        blank = "\n\n" in text + text and "<" not in text
        inside = "\n" not in text and "," not in text
        return 1 if blank or inside or _assigns(text) else IN_CODE


def _assigns(repeated: str) -> bool:
    """Return whether some repeated code, which may begin inside a line, assigns or tests."""
    if "<" in repeated:  # markup has attributes
        return False
    begun, end, following = repeated.partition("\n" if "\n" in repeated else ",")
    return _ASSIGNS.search(following + begun + end) is not None


class Repetition:
    """The period with which a sequence repeats itself at its end."""

    def __init__(self) -> None:
        self.symbols: list[int] = []
        self.period = self.repeated = 0
        """The symbols at the end that equal those one period before."""
        self.enough: float = REPEATED
        """How many of them make a loop."""
        self.judged = False
        """Whether that takes into account what is repeated."""
        self.familiar = 0
        """How many of the last tokens end a run that was said shortly before, at any distance."""
        self._last: dict[tuple[int, ...], int] = {}
        """Where each run ended last."""

    def count(self, token: int, number: bool) -> None:
        """Add a token; those of a number count as one that is equal to all others."""
        if not number:
            self.add(token)
        elif self.symbols[-1:] != [COUNTER]:
            self.add(COUNTER)

    def add(self, symbol: int) -> None:
        symbols, end = self.symbols, len(self.symbols)
        symbols.append(symbol)
        run = tuple(symbols[-RUN:])
        known = end - self._last.get(run, -REPEATED) <= REPEATED
        self.familiar = self.familiar + 1 if known else max(0, self.familiar - NEW)
        if self.period and symbols[end - self.period] == symbol:
            self.repeated += 1
        else:
            self._follow(end - self._last.get(run, end))
        self._last[run] = end

    def _follow(self, period: int) -> None:
        """Follow another period, as far back as it may matter."""
        symbols, repeated = self.symbols, 0
        self.period, self.judged = period, False
        self.enough = max(REPEATED, period + 1)
        farthest = min(self.enough, len(symbols) - period) if period else 0
        while repeated < farthest and symbols[-1 - repeated] == symbols[-1 - repeated - period]:
            repeated += 1
        self.repeated = repeated
