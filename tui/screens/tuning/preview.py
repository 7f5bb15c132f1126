"""What thresholds are about, and what moving them would change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from entropix_mlx.step import Step, Strategy


class Threshold(NamedTuple):
    """One bound of a strategy."""

    strategy: Strategy
    measurement: str
    above: bool
    """Whether the measurement must lie above it."""


THRESHOLDS = {
    "low_entropy": Threshold(Strategy.ARGMAX, "entropy", above=False),
    "low_varentropy": Threshold(Strategy.ARGMAX, "varentropy", above=False),
    "think_min_entropy": Threshold(Strategy.THINK, "entropy", above=True),
    "think_max_varentropy": Threshold(Strategy.THINK, "varentropy", above=False),
    "branch_max_entropy": Threshold(Strategy.BRANCH, "entropy", above=False),
    "branch_min_varentropy": Threshold(Strategy.BRANCH, "varentropy", above=True),
    "branch_max_margin": Threshold(Strategy.BRANCH, "margin", above=False),
    "resample_min_entropy": Threshold(Strategy.RESAMPLE, "entropy", above=True),
    "resample_min_varentropy": Threshold(Strategy.RESAMPLE, "varentropy", above=True),
}
"""The thresholds of a profile by name, in the order of precedence."""


@dataclass(frozen=True)
class Preview:
    """An answer, and what other thresholds would have decided about its tokens."""

    steps: Sequence[Step] = ()
    strategies: Sequence[Strategy] = ()

    @property
    def differing(self) -> int:
        """How many tokens' strategy differs from what was decided."""
        pairs = zip(self.steps, self.strategies, strict=True)
        return sum(step.strategy is not strategy for step, strategy in pairs)

    def counts(self, strategy: Strategy) -> tuple[int, int]:
        """Return how many tokens have a strategy: as it was decided, and as it would be."""
        decided = Counter(step.strategy for step in self.steps)
        return decided[strategy], Counter(self.strategies)[strategy]
