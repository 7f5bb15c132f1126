"""Loops: an answer that only repeats itself is ended, or else it would fill its limit.

    tokens   A B C D E F   C D E F   C D E F   C D E F   …
    period       4         the loop begins here: from now on, each token is that one period before

How much may be repeated depends on what it is: a refrain may stand twice in a row and a short line
many times. Rows of signs and digits belong to tables and pictures, and code repeats itself more
than prose does. A sentence that comes again and again as the next item of a list is a loop, too.
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
zeros."""
SENTENCE = 5
"""Words of each item that is repeated in a list, at least: names and blanks may come again."""
COUNTER = -1
"""Stands for the number of an item, in place of its tokens."""

_LETTER = re.compile(r"[^\W\d_]")
_WORD = re.compile(r"[^\W\d_]{3,}")
_FENCE = "```"


class LoopDetector:
    """Finds the loop that a text is in, in constant time a token on average."""

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._tokens: list[int] = []
        self._known: dict[int, str] = {}
        self._plain, self._numbered = Repetition(), Repetition()
        self._line_begins = True
        """Whether the line has no letter yet: a number there is that of an item."""

    def add(self, token: int) -> bool:
        """Return whether the text is in a loop with its next token."""
        self._tokens.append(token)
        self._plain.add(token)
        symbol = self._symbol(token)
        if symbol != COUNTER or self._numbered.symbols[-1:] != [COUNTER]:
            self._numbered.add(symbol)
        return self._ends(self._plain) or self._ends(self._numbered)

    def _symbol(self, token: int) -> int:
        """Return a token, or what stands for it if it belongs to the number of an item."""
        if token not in self._known:
            self._known[token] = self._decode([token])
        text = self._known[token]
        *_, line = text.rpartition("\n")
        self._line_begins = (self._line_begins or line != text) and not _LETTER.search(line)
        return COUNTER if self._line_begins and text.strip().isdecimal() else token

    def _ends(self, repetition: Repetition) -> bool:
        if repetition.repeated < repetition.enough:
            return False
        if not repetition.judged:
            repetition.enough *= self._patience(repetition)
            repetition.judged = True
        return repetition.repeated >= repetition.enough

    def _patience(self, repetition: Repetition) -> float:
        own = [token for token in repetition.symbols[-repetition.period :] if token != COUNTER]
        words = _WORD.findall(self._decode(own))
        if len(words) < SENTENCE * (repetition.period - len(own)):
            return math.inf
        if not words:
            return WITHOUT_WORDS
        return IN_CODE if self._decode(self._tokens).count(_FENCE) % 2 else 1


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
        self._last: dict[tuple[int, ...], int] = {}
        """Where each run ended last."""

    def add(self, symbol: int) -> None:
        symbols, end = self.symbols, len(self.symbols)
        symbols.append(symbol)
        run = tuple(symbols[-RUN:])
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
