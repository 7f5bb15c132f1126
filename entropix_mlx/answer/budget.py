"""What several answers to many prompts may cost: the first answers earn tokens, the others spend
them.

    first answers    ■■■■ ■■■ ■■■■■■ ■■■      earn (budget − 1) × their tokens
    other answers              ▪▪▪▪▪▪         to the least sure first ones, until that is spent

No threshold is set by anybody: how sure a model is of an answer depends on the wording of the
question, so only the order of first answers counts.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from .selection import AnswerSelection

PRIOR = (-1.4, -1.1, -0.95, -0.85, -0.7, -0.6, -0.55, -0.5, -0.45, -0.35, -0.25, -0.15, -0.05)
"""Mean log p of first answers, until there are others to compare with."""
RECENT = 200  # first answers among which a new one is ranked


class Budget:
    """The tokens of other answers to prompts that share a model and like settings.

    At no moment, but for the tokens of one pass, do all answers have more than
    `AnswerSelection.budget` times the tokens of the first ones.
    """

    def __init__(self, *, ranked: bool = False) -> None:
        """Begin with nothing earned.

        Args:
            ranked: whether all first answers are awaited, and the least sure ones come first; else
                each is compared with those before it as soon as it ends.
        """
        self._ranked = ranked
        self._earned = 0.0
        self._spent = 0
        self._scores: deque[float] = deque(PRIOR, RECENT)
        # How sure the first answers are that wait for the others of a ranking.
        self._waiting: dict[AnswerSelection, float] = {}
        # Tokens that the others are expected to have, where they run.
        self._open: dict[AnswerSelection, int] = {}

    @property
    def exhausted(self) -> bool:
        """Whether the other answers that still run have to end where they are."""
        return self._spent >= self._earned

    def spend(self, tokens: int) -> None:
        self._spent += tokens

    def divide(self, selections: Sequence[AnswerSelection]) -> None:
        """Decide, for first answers that have ended, how many others are drawn."""
        self._open = {one: cost for one, cost in self._open.items() if not one.done}
        undecided = [one for one in selections if not one.decided]
        for one in undecided:
            if one.candidates[0].ended and one not in self._waiting:
                self._waiting[one] = one.candidates[0].sureness
                self._earned += (one.budget - 1) * len(one.candidates[0].steps)
        if self._ranked and len(self._waiting) < len(undecided):
            return
        left = self._left
        for one in sorted(self._waiting, key=self._waiting.__getitem__):
            others = self._others(one, left)
            if others or not self._open or not self._ranked:  # those that run may leave something
                del self._waiting[one]
                one.draw(others)
            if others:
                self._open[one] = others * _length(one)
                left -= self._open[one]

    @property
    def _left(self) -> float:
        """Tokens that are earned, and neither spent nor needed for answers that still run."""
        reserved = sum(
            max(0, cost - sum(len(other.steps) for other in one.candidates[1:]))
            for one, cost in self._open.items()
        )
        return self._earned - self._spent - reserved

    def _others(self, selection: AnswerSelection, left: float) -> int:
        """Return how many other answers are drawn, each expected to be as long as the first."""
        if not selection.candidates[0].complete:
            return 0
        if not self._ranked and not self._is_unsure(selection):
            return 0
        return max(0, min(selection.most - 1, math.floor(left / _length(selection) + 1e-9)))

    def _is_unsure(self, selection: AnswerSelection) -> bool:
        """Tell whether a first answer is among the share of the least sure that can be paid for."""
        sureness = self._waiting[selection]
        below = sum(score < sureness for score in self._scores)
        share = (selection.budget - 1) / max(1, selection.most - 1)
        unsure = below < share * (len(self._scores) + 1)
        self._scores.append(sureness)
        return unsure


def _length(selection: AnswerSelection) -> int:
    return max(1, len(selection.candidates[0].steps))
