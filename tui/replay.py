"""Which steps of a recorded answer have come by now, if it is played again."""

from __future__ import annotations

from collections.abc import Sequence

from entropix_mlx.step import Step

SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""How many times as fast as it was recorded an answer can be played."""


class Replay:
    """An answer while it is played; time is told to it, so that it needs no clock."""

    def __init__(self, steps: Sequence[Step], start: int = 0) -> None:
        """Begin with a step, which comes at once.

        Args:
            steps: the whole answer.
            start: the index of the first step to play.
        """
        self._steps = steps
        self._speed = SPEEDS.index(1.0)
        self.played = start
        """The steps that have come."""
        self._now = steps[start].time if start < len(steps) else 0.0

    @property
    def speed(self) -> float:
        """How many times as fast as it was recorded it is played."""
        return SPEEDS[self._speed]

    @property
    def ended(self) -> bool:
        """Whether every step has come."""
        return self.played >= len(self._steps)

    def change_speed(self, by: int) -> None:
        """Play faster or slower by some of the `SPEEDS`."""
        self._speed = min(max(self._speed + by, 0), len(SPEEDS) - 1)

    def advance(self, seconds: float) -> list[Step]:
        """Let some seconds pass; return the steps that come in them."""
        first = self.played
        self._now += seconds * self.speed
        while not self.ended and self._steps[self.played].time <= self._now:
            self.played += 1
        return list(self._steps[first : self.played])
