"""What the host knows about one position of one text, in Python numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from ..step import Decision


class Reading(NamedTuple):
    """What was decided and drawn at a position."""

    decision: Decision
    token: int
    logprob: float
    """Natural log probability of the token at temperature 1."""
    best: tuple[tuple[int, float], ...]
    """The most probable tokens and their log probabilities, if asked for."""

    def without_thinking(self) -> Reading:
        """Return the reading with the strategy's name where no text may be inserted."""
        strategy = self.decision.strategy.sampled()
        if strategy is self.decision.strategy:
            return self
        return self._replace(decision=replace(self.decision, strategy=strategy))
