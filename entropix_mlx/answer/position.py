"""What the host knows about one position of one text, in Python numbers."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from ..errors import NonFiniteLogitsError
from ..step import OF_ATTENTION, Decision


class Likelihood(NamedTuple):
    """How well a token that is given was predicted by those before it."""

    logprob: float
    """Natural log probability at temperature 1."""
    best: bool
    """Whether no token was more probable."""
    listed: tuple[tuple[int, float], ...] = ()
    """The most probable tokens and their log probabilities, best first, if they were asked for."""


class Reading(NamedTuple):
    """What was decided and drawn at a position."""

    decision: Decision
    token: int
    logprob: float
    """Natural log probability of the token at temperature 1."""
    best: tuple[tuple[int, float], ...]
    """The most probable tokens and their log probabilities, if asked for."""

    @property
    def entropy(self) -> float:
        """Of the position, in bits."""
        return self.decision.metrics.entropy

    def checked(self) -> Reading:
        """Return the reading.

        Raises:
            NonFiniteLogitsError: the model computed NaN or infinite logits there.
        """
        if math.isnan(self.decision.metrics.entropy):
            raise NonFiniteLogitsError(
                "the model computed NaN or infinite logits: its weights are damaged, or its"
                " precision is too low; try another conversion of it"
            )
        return self

    def without_attention(self) -> Reading:
        """Return the reading where attention was not measured: its measurements are NaN."""
        metrics = self.decision.metrics
        unknown = dict.fromkeys(OF_ATTENTION, math.nan)
        return self._replace(decision=replace(self.decision, metrics=metrics._replace(**unknown)))

    def without_thinking(self) -> Reading:
        """Return the reading with the strategy's name where no text may be inserted."""
        strategy = self.decision.strategy.sampled()
        if strategy is self.decision.strategy:
            return self
        return self._replace(decision=replace(self.decision, strategy=strategy))
