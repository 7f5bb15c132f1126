"""How often something may happen in an answer, and how far apart."""

from __future__ import annotations


class Allowance:
    """A number of interventions, and the least gap between two.

    It is told of every step, so it holds for an answer that is taken up again from its steps.
    """

    def __init__(self, most: int, min_gap: int) -> None:
        """Allow `most` in all, `min_gap` tokens apart."""
        self._most = most
        self._min_gap = min_gap
        self._earliest = 0
        self.count = 0

    def allows(self, index: int) -> bool:
        """Tell whether one may begin at a position of the answer."""
        return self.count < self._most and index >= self._earliest

    def begin(self) -> None:
        """Count one more."""
        self.count += 1

    def cover(self, index: int) -> None:
        """Note that a token of one stands at a position."""
        self._earliest = index + 1 + self._min_gap
