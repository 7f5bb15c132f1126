"""Guessing what comes next from the text itself: what followed the last tokens before.

Where an answer copies from its prompt or from itself, the next tokens stand in the text already.
`Lookup` finds them by an index that grows with every token, and says how many of them to run in one
pass. A guess changes no token: the scheduler keeps a guessed token only if it is the one that is
drawn there.

How long a guess is depends on the text and the settings alone, never on a clock, so that a seed
repeats its passes, too. It is the length that promises the most tokens for the time:

    a pass of 1 + n tokens takes cost(n) times as long as one of 1 token;
    if each guess holds with probability r, it yields 1 + r + r² + … + rⁿ tokens.

r is a running mean over the answer so far, whether its tokens were guessed or only would have been,
kept apart for matches of 2, 3 and 4 tokens. So a text without repetition is not slowed down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SHORTEST, LONGEST = 2, 4
"""Tokens that must be repeated before what followed them is a guess: the longest match counts."""
FIRST_RATES = {2: 0.3, 3: 0.5, 4: 0.7}
"""How often guesses are taken to hold after a match of so many tokens, before any was compared."""
FORGETS = 0.25
"""The weight of the newest token in that mean."""
GAIN = 1.1
"""Tokens for the time, relative to a pass without a guess, that a guess must promise."""

Costs = Sequence[tuple[int, float]]
"""Lengths of guesses, and the time of a pass with one of each, relative to a pass without."""
CAREFUL: Costs = ((2, 2.1), (4, 3.3), (8, 4.8))
"""Measured with the reference BLAS, which does not batch. Used for GPUs, too, where nothing was
measured: a pass there reads the weights once, so that longer ones should cost less than here."""
BATCHED: Costs = ((2, 1.6), (4, 1.9), (8, 2.1))
"""Measured with OpenBLAS."""


@dataclass(frozen=True)
class Guessing:
    """How long guesses may be."""

    length: int | None = None
    """Always so many tokens where anything is repeated; None for as many as seem to pay."""
    costs: Costs = CAREFUL


class Lookup:
    """The index of one text, and how often its guesses held."""

    def __init__(self, guessing: Guessing) -> None:
        """Begin without a text."""
        self._guessing = guessing
        self._tokens: list[int] = []
        self._ends: dict[tuple[int, ...], int] = {}
        """Where the last tokens of each kind ended when they were seen last."""
        self._next: int | None = None
        """Where what followed the last tokens begins."""
        self._matched = 0
        """How many of the last tokens were found there."""
        self._rates = dict(FIRST_RATES)

    def follow(self, tokens: Sequence[int]) -> None:
        """Take note of a text, which begins with the one that was told before.

        What is told first is the prompt: whether it repeats itself says little of the answer.
        """
        answered = bool(self._tokens)
        for token in tokens[len(self._tokens) :]:
            if answered and self._next is not None:
                held = self._tokens[self._next] == token
                self._rates[self._matched] += FORGETS * (held - self._rates[self._matched])
            self._add(token)

    def guess(self, ahead: int = 0) -> list[int]:
        """Return what probably follows, as far as it pays; nothing where nothing is repeated.

        Args:
            ahead: tokens that come before the guess, and are drawn already but not known yet.
        """
        if self._next is None:
            return []
        return self._continued(ahead + self._length(ahead))[ahead:]

    def _add(self, token: int) -> None:
        self._tokens.append(token)
        self._next = None
        for length in range(SHORTEST, min(LONGEST, len(self._tokens)) + 1):
            last = tuple(self._tokens[-length:])
            if (found := self._ends.get(last)) is not None:
                self._next, self._matched = found, length
            self._ends[last] = len(self._tokens)

    def _length(self, ahead: int) -> int:
        """Return the length that promises the most tokens for the time; 0 if none pays."""
        if self._guessing.length is not None:
            return self._guessing.length
        best, chosen, rate = GAIN, 0, self._rates[self._matched]
        for length, cost in self._guessing.costs:
            tokens = 1 + sum(rate ** (ahead + number) for number in range(1, length + 1))
            if tokens / cost > best:
                best, chosen = tokens / cost, length
        return chosen

    def _continued(self, count: int) -> list[int]:
        """Return `count` tokens from where the last ones stood before.

        Where that reaches the end of the text, the text repeats itself, and so does the guess.
        """
        begin = len(self._tokens) if self._next is None else self._next
        period = len(self._tokens) - begin
        return [self._tokens[begin + number % period] for number in range(count)]
