"""The place after a token: what was measured and decided there, and the token that was drawn."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import NamedTuple, Protocol

from ..errors import NonFiniteLogitsError
from ..step import OF_ATTENTION, Decision, Step


class Likelihood(NamedTuple):
    """How well a given token was predicted by those before it."""

    logprob: float
    """Natural log probability at temperature 1."""
    rank: int
    """1 where no token was more probable."""
    listed: tuple[tuple[int, float], ...] = ()
    """The most probable tokens and their log probabilities, best first, if asked for."""


class Distribution(Protocol):
    """The distribution at a position, which stays on the device."""

    def logprobs(self, tokens: Sequence[int]) -> list[float]:
        """Return the natural log probabilities of some tokens at temperature 1."""

    def openings(self, count: int) -> list[int]:
        """Return different tokens that may stand here, the most probable one first."""


@dataclass(frozen=True, slots=True)
class Position:
    """One position of one text, in Python numbers."""

    decision: Decision
    token: int
    """The token that was drawn, or put there."""
    logprob: float
    """Natural log probability of the token at temperature 1."""
    best: tuple[tuple[int, float], ...] = ()
    """The most probable tokens and their log probabilities, if asked for."""
    strain: float | None = None
    """As in `Step`."""
    allowed: tuple[tuple[int, float], ...] = ()
    """The most probable allowed tokens, and their log probabilities among those."""
    self_certainty: float | None = None
    """As in `Step`."""
    distribution: Distribution | None = None
    """None where the position is stored: the arrays of many positions would fill the memory."""

    @property
    def forced(self) -> bool:
        """Whether a constraint leaves only one token."""
        return self.strain is not None and len(self.allowed) == 1

    @property
    def entropy(self) -> float:
        return self.decision.metrics.entropy

    def checked(self) -> Position:
        """Return the position.

        Raises:
            NonFiniteLogitsError: the model computed NaN or infinite logits there.
        """
        if math.isnan(self.entropy):
            raise NonFiniteLogitsError(
                "the model computed NaN or infinite logits: its weights are damaged, or its"
                " precision is too low; try another conversion of it"
            )
        return self

    def without_attention(self) -> Position:
        """Return the position where attention was not measured: its metrics are NaN."""
        unknown = dict.fromkeys(OF_ATTENTION, math.nan)
        metrics = self.decision.metrics._replace(**unknown)
        return replace(self, decision=replace(self.decision, metrics=metrics))

    def detached(self) -> Position:
        """Return the position without its arrays, to be stored."""
        return replace(self, distribution=None)

    def sampled(self) -> Position:
        """Return the position as it is committed: with the strategy where no text is inserted."""
        decision = replace(self.decision, strategy=self.decision.strategy.sampled())
        return replace(self, decision=decision, distribution=None)

    def given(self, tokens: Sequence[int]) -> list[Position]:
        """Return the position with each of some tokens in place of the one that was drawn."""
        return [
            replace(self, token=token, logprob=logprob, distribution=None)
            for token, logprob in zip(tokens, self._known.logprobs(tokens), strict=True)
        ]

    def openings(self, count: int) -> list[Position]:
        """Return the position with different tokens that may stand here, the likeliest first."""
        return self.given(self._known.openings(count))

    @property
    def _known(self) -> Distribution:
        if self.distribution is None:
            raise RuntimeError("the arrays of this position are gone: it was detached")
        return self.distribution


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
    """Return how much better a tried continuation is than the usual one, in nats a token.

    Log p tells how likely the tokens are that were drawn, and the entropy how sure the model was
    before it drew them. Each has errors of its own, so the gain is the mean of the two, over as
    many tokens as both have.
    """
    pairs = list(zip(tried, usual, strict=False))
    if not pairs:
        return 0.0
    one, other = (Stretch.of(side) for side in zip(*pairs, strict=True))
    return ((one.logprob - other.logprob) - (one.entropy - other.entropy)) / 2
