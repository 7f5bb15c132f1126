"""Comparing two continuations: the mean log probability and entropy of some tokens in a row.

Two continuations of the same text are compared by both. Log p tells how likely the tokens are
that were drawn, and the entropy how sure the model was before it drew them; each has errors of its
own, so the *gain* is the mean of the two.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import fmean
from typing import NamedTuple

from ..step import Step
from .position import Position

Scored = Position | Step
"""A token with its natural log probability at temperature 1, and the entropy of the model's
distribution before it, at temperature 1, in bits."""


class Stretch(NamedTuple):
    """Means over some tokens, those of the model at temperature 1, in nats a token."""

    logprob: float
    entropy: float

    @classmethod
    def of(cls, tokens: Iterable[Scored]) -> Stretch:
        """Return the means over some tokens.

        Raises:
            ValueError: there are none.
        """
        logprobs, entropies = zip(*((one.logprob, one.entropy) for one in tokens), strict=True)
        return cls(fmean(logprobs), fmean(entropies) * math.log(2))


def gain(tried: Iterable[Scored], usual: Iterable[Scored]) -> float:
    """Return how much better one continuation is than another, in nats a token.

    Args:
        tried: the tokens of the one.
        usual: those of the other; as many are compared as both have. 0 where there are none.
    """
    pairs = list(zip(tried, usual, strict=False))
    if not pairs:
        return 0.0
    one, other = (Stretch.of(side) for side in zip(*pairs, strict=True))
    return ((one.logprob - other.logprob) - (one.entropy - other.entropy)) / 2
