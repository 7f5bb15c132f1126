"""Comparing the ways of a fork: by how much one leads, and how certain that is.

Ways are compared with the first one, position by position over the tokens that both have, because
the tokens of one position have something in common: at a fork's own position every token is
improbable. With x_t the log probability of a way's token t, and m tokens in common:

    d_t   = x_t of the way − x_t of the first
    lead  = mean of d_t                                     nats a token
    s²    = Σ (d_t − lead)² / Σ (m − 1), over all ways      what a single token differs by
    error = s / √m                                          the standard error of the lead

That is the paired comparison of two means, with one variance for the whole fork: a way may have few
tokens, from which alone no variance can be told. A token that copies (see `copies`) does not count
in favour of the way that it belongs to: of such a d_t, only what speaks against that way is kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple


@dataclass(frozen=True)
class Way:
    """The tokens of one way, as far as they are compared."""

    logprobs: Sequence[float]
    """Natural log probability of each token at temperature 1."""
    copied: Sequence[bool]
    """Whether each of them copies."""


class Lead(NamedTuple):
    """How far a way is ahead of the first one."""

    nats: float
    """A token; negative where it is behind."""
    error: float | None
    """The standard error of that; None where no token but the first of any way is compared."""

    def exceeds(self, margin: float) -> bool:
        """Tell whether the way is ahead by more than so many standard errors."""
        return self.error is not None and self.nats > 0 and self.nats > margin * self.error


def leads(ways: Sequence[Way]) -> list[Lead]:
    """Return how far each way is ahead of the first, which is 0 ahead of itself."""
    first, *others = ways
    compared = [_differences(way, first) for way in others]
    means = [fmean(differences) for differences in compared]
    freedom = sum(len(differences) - 1 for differences in compared)
    squares = sum(
        (difference - mean) ** 2
        for differences, mean in zip(compared, means, strict=True)
        for difference in differences
    )
    one = math.sqrt(squares / freedom) if freedom else None
    found = [
        Lead(mean, None if one is None else one / math.sqrt(len(differences)))
        for mean, differences in zip(means, compared, strict=True)
    ]
    return [Lead(0.0, 0.0), *found]


def _differences(way: Way, first: Way) -> list[float]:
    """Return d_t of the tokens that both have."""
    found = []
    for one, other, copies, first_copies in zip(
        way.logprobs, first.logprobs, way.copied, first.copied, strict=False
    ):
        difference = one - other
        if copies:
            difference = min(difference, 0.0)
        if first_copies:
            difference = max(difference, 0.0)
        found.append(difference)
    return found


class Copies:
    """Knows the runs of a text, prompt and answer, and which tokens of a way copy one.

    The index grows when it is asked, so that an answer without forks does not pay for it.
    """

    def __init__(self, length: int) -> None:
        """Begin without a text.

        Args:
            length: tokens of a run; a token that completes one which stood before is a copy. With
                0, none is.
        """
        self._length = length
        self._text: list[int] = []
        self._runs: set[tuple[int, ...]] = set()
        self._indexed = 0

    def follow(self, tokens: Iterable[int]) -> None:
        """Take note of more tokens of the text."""
        self._text.extend(tokens)

    def marks(self, tokens: Sequence[int]) -> list[bool]:
        """Tell of each token of a way that goes on from the text whether it is a copy.

        A way that repeats itself copies, too.
        """
        if not self._length:
            return [False] * len(tokens)
        known = len(self._text)
        self._runs.update(_runs(self._text, range(self._indexed, known), self._length))
        self._indexed = known
        tail = self._text[max(0, known - self._length + 1) :]
        own: set[tuple[int, ...]] = set()
        marks = []
        for run in _runs([*tail, *tokens], range(len(tail), len(tail) + len(tokens)), self._length):
            marks.append(run in self._runs or run in own)
            own.add(run)
        return [False] * (len(tokens) - len(marks)) + marks


def _runs(tokens: Sequence[int], last: range, length: int) -> Iterator[tuple[int, ...]]:
    """Yield the runs of a length whose last tokens are in a range of places."""
    for place in last:
        if place + 1 >= length:
            yield tuple(tokens[place + 1 - length : place + 1])
