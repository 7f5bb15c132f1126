"""What gauges show of an answer: its newest token while it comes, its means at its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from textual.style import Style

from entropix_mlx.step import Step, Strategy

from ..drawing import DIM
from ..styles import COLOURS

PLAIN = Style()


class Newest:
    """Follows the steps of an answer."""

    def __init__(self, steps: Sequence[Step] = ()) -> None:
        """Begin with a whole answer; steps that are added later are of one that is growing."""
        self.step: Step | None = None
        """The newest one; None at the end of an answer, and before its beginning."""
        self.counts: Counter[Strategy] = Counter()
        """How often each strategy was decided."""
        self._sums: Counter[str] = Counter()
        self.add(steps)
        self.step = None

    def add(self, steps: Sequence[Step]) -> None:
        """Add the next steps."""
        for step in steps:
            self.counts[step.strategy] += 1
            self._sums.update(step.metrics._asdict())
            self.step = step

    @property
    def tokens(self) -> int:
        """How many there are."""
        return self.counts.total()

    @property
    def values(self) -> Mapping[str, float]:
        """The measurements to show, by name; empty if nothing was measured yet."""
        if self.step is not None:
            return self.step.metrics._asdict()
        return {name: total / self.tokens for name, total in self._sums.items()}

    @property
    def style(self) -> Style:
        """The style of their bars."""
        if self.step is not None:
            return COLOURS[self.step.strategy]
        return PLAIN if self.tokens else DIM
