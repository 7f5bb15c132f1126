"""Loops: an answer that only repeats itself is ended, or else it would fill its limit.

    tokens   A B C D E F   C D E F   C D E F   C D E F   …
    period       4         the loop begins here: from now on, each token is that one period before

How much may be repeated depends on what it is: a refrain may stand twice in a row and a short line
many times. Rows of signs and digits belong to tables and pictures, and code repeats its lines more
than prose does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

RUN = 4
"""Tokens in a row by which a period is noticed."""
REPEATED = 64
"""Tokens, from the beginning of a loop, after which it ends if that is more than one period."""
IN_CODE, WITHOUT_WORDS = 3, 8
"""How many times as long such loops may be: pages have six equal cards, and grids a hundred
zeros."""

_WORD = re.compile(r"[^\W\d_]{3,}")
_FENCE = "```"


class LoopDetector:
    """Finds the loop that a text is in, in constant time a token on average."""

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._tokens: list[int] = []
        self._last: dict[tuple[int, ...], int] = {}
        """Where each run ended last."""
        self._period = self._repeated = 0
        """The tokens at the end that equal those one period before."""
        self._enough = REPEATED
        """How many of them make a loop."""
        self._judged = False
        """Whether that takes into account what is repeated."""

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
        if self._repeated >= self._enough and not self._judged:
            self._enough *= self._patience()
            self._judged = True
        return self._repeated >= self._enough

    def _follow(self, period: int) -> None:
        """Follow another period, as far back as it may matter."""
        tokens, repeated = self._tokens, 0
        self._period, self._judged = period, False
        self._enough = max(REPEATED, period + 1)
        farthest = min(self._enough, len(tokens) - period) if period else 0
        while repeated < farthest and tokens[-1 - repeated] == tokens[-1 - repeated - period]:
            repeated += 1
        self._repeated = repeated

    def _patience(self) -> int:
        """Return how many times as long a loop of what is repeated now may be."""
        if not _WORD.search(self._decode(self._tokens[-self._period :])):
            return WITHOUT_WORDS
        in_code = self._decode(self._tokens).count(_FENCE) % 2 == 1
        return IN_CODE if in_code else 1
