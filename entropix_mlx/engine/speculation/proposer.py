"""Proposers: where proposed tokens come from, and how many are proposed for a pass.

Speculation changes no token: a proposed token is accepted only if it is the one that is drawn
there. How many are proposed depends on the text and the settings alone, never on a clock, so that a
seed repeats its passes, too. It is the number that promises the most tokens for the time:

    a pass of 1 + n tokens takes cost(n) times as long as one of 1 token;
    if tokens are accepted with probabilities r₁, r₂, …, given that those before them were,
    it yields 1 + r₁ + r₁r₂ + … + r₁⋯rₙ tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import Protocol

from ...models.device import CAREFUL, Costs

GAIN = 1.02
"""Tokens for the time, relative to a pass without proposed ones, that a proposal must promise."""


@dataclass(frozen=True)
class Lengths:
    """How many tokens may be proposed for a pass."""

    fixed: int | None = None
    """Always so many where there is anything to propose; None for as many as seem to pay."""
    costs: Costs = CAREFUL

    def best(self, rates: Sequence[float], ahead: int = 0, alone: bool = True) -> int:
        """Return the number that promises the most tokens for the time; 0 if none pays.

        Args:
            rates: how probably each token is accepted, if those before it are.
            ahead: how many of the first tokens are drawn already, but not known yet.
            alone: whether no other answer is in the pass. If there are others, the pass multiplies
                several rows already, and a further one costs as much as everybody's.
        """
        if self.fixed is not None:
            return self.fixed
        hold = list(accumulate(rates, mul))
        best, chosen = GAIN, 0
        for length, cost in self.costs if alone else CAREFUL:
            tokens = 1 + sum(hold[ahead : ahead + length])
            if tokens / cost > best:
                best, chosen = tokens / cost, length
        return chosen

    @property
    def longest(self) -> int:
        if self.fixed is not None:
            return self.fixed
        return max(length for length, _ in (*self.costs, *CAREFUL))


class Proposer(Protocol):
    """Proposes the next tokens of one answer.

    It is given the whole text every time, from which it sees what became of its proposals.
    """

    needs_last_token: bool
    """Whether it can propose nothing before the last token is known."""

    def propose(self, tokens: Sequence[int], ahead: int = 0, alone: bool = True) -> list[int]:
        """Return what probably follows a text, as far as it pays; nothing where it does not.

        Args:
            tokens: the text so far, which begins with the one of the last call.
            ahead: tokens that come before the proposal, and are drawn already but not known yet.
            alone: whether no other answer is in the pass.
        """

    def close(self) -> None:
        """Give back what the proposals were computed with; the answer has ended."""
