"""Loops: an answer that only repeats itself is ended, or else it would fill its limit.

    tokens   A B C D E F   C D E F   C D E F   C D E F   …
    period       4         the loop begins here: from now on, each token is that one period before

How much may be repeated depends on what it is: a refrain may stand twice in a row and a short line
many times. Rows of signs and digits belong to tables and pictures, and code repeats itself more
than prose does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

RUN = 4
"""Tokens in a row by which a period is noticed."""
REPEATED = 64
"""Tokens, from the begin of a loop, after which it is ended if that is more than one period."""
IN_CODE, WITHOUT_WORDS = 3, 8
"""How many times as long such loops may be."""

_WORD = re.compile(r"[^\W\d_]{3}")
_FENCE = "```"


class LoopDetector:
    """Finds the loop that a text is in, in constant time a token on average."""

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._tokens: list[int] = []
        self._last: dict[tuple[int, ...], int] = {}
        """Where each run of tokens ended last."""
        self._period = self._repeated = self._most = 0
        self._looked = False
        """Whether `_most` takes into account what is repeated."""

    def add(self, token: int) -> bool:
        """Return whether the text is in a loop with its next token."""
        tokens, end = self._tokens, len(self._tokens)
        tokens.append(token)
        run = tuple(tokens[-RUN:])
        if self._period and tokens[end - self._period] == token:
            self._repeated += 1
        else:
            self._follow(end - self._last.get(run, end))
        self._last[run] = end
        if not self._period or self._repeated < self._most:
            return False
        if not self._looked:
            self._look()
        return self._repeated >= self._most

    def _follow(self, period: int) -> None:
        """Follow another period, as far back as it may matter."""
        tokens, repeated = self._tokens, 0
        self._period = period
        self._most = max(REPEATED, period + 1)
        self._looked = False
        if period:
            farthest = min(self._most, len(tokens) - period)
            while repeated < farthest and tokens[-1 - repeated] == tokens[-1 - repeated - period]:
                repeated += 1
        self._repeated = repeated

    def _look(self) -> None:
        self._looked = True
        if not _WORD.search(self._decode(self._tokens[-2 * self._period :])):
            self._most *= WITHOUT_WORDS
        elif self._decode(self._tokens).count(_FENCE) % 2:
            self._most *= IN_CODE
