"""Loops: an answer that only repeats itself is ended, or else it would fill its limit.

    tokens   A B C D E F   C D E F   C D E F   C D E F   …
    period       4         the loop begins here: from now on, each token is that one period before

How much may be repeated depends on what it is: a sentence may stand twice in a row and a short line
many times. Rows of signs and digits belong to tables and pictures, and code repeats its lines more
than prose does.

Small models also repeat a phrase and go on in other words, which has no period. That is a loop
where the phrase stands for the third time in one paragraph of prose.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

RUN = 4  # tokens in a row by which a period is noticed
REPEATED = 64  # tokens after which a loop ends, if that is more than one period
IN_CODE, WITHOUT_WORDS = 3, 8  # times as long such loops may be: grids have a hundred zeros
SENTENCE = 8  # tokens of a period that is more than a short line
PHRASE, WORDS = 6, 4  # tokens of a phrase, and words in them at least
PHRASES = 3  # phrases in one paragraph that make a loop
PARAGRAPH = 128  # tokens from the first of these phrases to the last

_WORD = re.compile(r"[^\W\d_]{3,}")
_WORDS = re.compile(r"[^\W\d_]+")
_PROSE = re.compile(r"[^{}<>\[\]|=_\\]*")
_FENCE = "```"


class LoopDetector:
    """Finds the loop that a text is in, in constant time a token on average."""

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._tokens: list[int] = []
        self._last: dict[tuple[int, ...], int] = {}  # where each run ended last
        self._period = self._repeated = 0  # tokens at the end that equal those one period before
        self._enough = REPEATED  # how many of them make a loop
        self._judged = False  # whether that takes into account what is repeated
        # Where each phrase ended, the last `PHRASES` times.
        self._phrases: dict[tuple[int, ...], list[int]] = {}

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
            self._enough = self._allowed()
            self._judged = True
        return self._repeated >= self._enough or self._repeats_phrase()

    def _repeats_phrase(self) -> bool:
        """Return whether a phrase is said for the third time in one paragraph of prose."""
        tokens, end = self._tokens, len(self._tokens)
        places = self._phrases.setdefault(tuple(tokens[-PHRASE:]), [])
        if places and end - places[-1] < SENTENCE:  # in a short line that is repeated
            places.pop()
        places.append(end)
        del places[:-PHRASES]
        if len(places) < PHRASES or end - places[0] > PARAGRAPH:
            return False
        words = _WORDS.findall(self._decode(tokens[-PHRASE:]))
        paragraph = self._decode(tokens[places[0] - PHRASE :])
        return len(words) >= WORDS and "\n" not in paragraph and self._is_prose(paragraph)

    def _follow(self, period: int) -> None:
        """Follow another period, as far back as it may matter."""
        tokens, repeated = self._tokens, 0
        self._period, self._judged = period, False
        twice = 2 * period if period >= SENTENCE else REPEATED
        self._enough = max(min(REPEATED, twice), period + 1)
        farthest = min(self._enough, len(tokens) - period) if period else 0
        while repeated < farthest and tokens[-1 - repeated] == tokens[-1 - repeated - period]:
            repeated += 1
        self._repeated = repeated

    def _allowed(self) -> int:
        """Return how many tokens may repeat those one period before, given what they say."""
        text = self._decode(self._tokens[-self._period :])
        longest = max(REPEATED, self._period + 1)
        if not _WORD.search(text):
            return WITHOUT_WORDS * longest
        if self._in_code():
            return IN_CODE * longest
        return self._enough if self._is_prose(text) else longest

    def _is_prose(self, text: str) -> bool:
        return bool(_PROSE.fullmatch(text)) and not self._in_code()

    def _in_code(self) -> bool:
        return self._decode(self._tokens).count(_FENCE) % 2 == 1
