"""Several answers to a prompt: whether more than the first are needed, and which is chosen.

The answer of the best `CHOICE_SCORE` is chosen. The `DEFAULT_SCORE` of the first answer, ranked
among those of other prompts, tells whether more are drawn: `Budget`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from ..profiles.confidence import CHOICE_SCORE, DEFAULT_SCORE, AnswerMetrics, score_of
from ..profiles.sections import AnswersRule
from ..step import Step
from ..summary import forward_tokens


class Enough(StrEnum):
    """Why no more answers were drawn, or awaited."""

    SURE = "sure"  # the first one is not among the least sure that can be paid for
    ALL = "all"  # all came to their ends
    BUDGET = "budget"  # more of them cannot be paid for
    INTERRUPTED = "interrupted"


class Candidate:
    """One of several answers to a prompt, as far as it has come."""

    def __init__(self, number: int, seed: int) -> None:
        self.number = number
        self.seed = seed
        self.steps: list[Step] = []
        self.ended = False  # whether nothing comes after the last step

    @property
    def score(self) -> float:
        """`CHOICE_SCORE` of the tokens so far; −∞ without any."""
        return score_of(CHOICE_SCORE, AnswerMetrics.of(self.steps))

    @property
    def sureness(self) -> float:
        """`DEFAULT_SCORE` of the tokens so far; −∞ without any."""
        return score_of(DEFAULT_SCORE, AnswerMetrics.of(self.steps))

    @property
    def text(self) -> str:
        return "".join(step.text for step in self.steps)

    @property
    def complete(self) -> bool:
        return bool(self.steps and self.steps[-1].finish_reason)

    @property
    def forward_tokens(self) -> int:
        """Tokens that went through the model for it; one was under way where it was ended."""
        return sum(forward_tokens(self.steps)) + (bool(self.steps) and not self.complete)

    def to_dict(self) -> dict[str, Any]:
        return {
            "text": self.text,
            "seed": self.seed,
            "tokens": len(self.steps),
            "token_ids": [step.token for step in self.steps],
            "forward_tokens": self.forward_tokens,
            "score": self.score if math.isfinite(self.score) else None,
            "complete": self.complete,
        }


class AnswersStanding(NamedTuple):
    """How several answers stand, and the confidence in the chosen one."""

    drawn: int
    complete: int
    confidence: float  # the geometric mean of the probabilities of the chosen answer's tokens

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> AnswersStanding:
        """Read it from `AnswerSelection.to_dict`."""
        confidence = float(record["confidence"])
        return cls(len(record["answers"]), int(record["complete"]), confidence)

    @property
    def counts(self) -> str:
        if self.drawn == 1:
            return "1 answer"
        return f"{self.complete} of {self.drawn} answers complete"

    @property
    def basis(self) -> str:
        return f"confidence {self.confidence:.0%} (mean of its tokens)"


class AnswerSelection:
    """The answers to one prompt: how many of them are needed, and which is chosen.

    It can be asked at any moment which one is chosen, also behind an interrupt: one of those that
    are complete, or else the first.
    """

    def __init__(
        self, rule: AnswersRule, answers: int | str, seed: int, budget: float = math.inf
    ) -> None:
        """Begin with the first answer; with a number, also with the others.

        Args:
            rule: of the profile.
            answers: a number, or ``"auto"``, with which a `Budget` decides.
            seed: of the first answer.
            budget: the times the tokens of the first answer that all may have, on average.
        """
        self.most = answers if isinstance(answers, int) else rule.count
        self.budget = budget
        self.decided = False  # whether it is known how many answers there are
        self.out_of_budget = False  # whether others were ended because they cannot be paid for
        self.candidates = [Candidate(0, seed)]
        if isinstance(answers, int):
            self.draw(answers - 1)

    @property
    def done(self) -> bool:
        return self.decided and all(candidate.ended for candidate in self.candidates)

    def draw(self, others: int) -> None:
        """Add other answers; none if the first one is to be the only one."""
        self.decided = True
        seed = self.candidates[0].seed
        self.candidates += [Candidate(n, derived(seed, n)) for n in range(1, others + 1)]

    @property
    def complete(self) -> list[Candidate]:
        return [candidate for candidate in self.candidates if candidate.complete]

    @property
    def chosen(self) -> Candidate:
        return max(self.complete, key=lambda one: one.score, default=self.candidates[0])

    @property
    def forward_tokens(self) -> int:
        """Of all answers, those included that were not chosen, or not completed."""
        return sum(candidate.forward_tokens for candidate in self.candidates)

    @property
    def stopped(self) -> Enough:
        if self.out_of_budget:
            return Enough.BUDGET
        if len(self.complete) < len(self.candidates):
            return Enough.INTERRUPTED
        if len(self.candidates) == self.most:
            return Enough.ALL
        return Enough.SURE if len(self.candidates) == 1 else Enough.BUDGET

    @property
    def times(self) -> float:
        """Forward tokens of all answers, in those of the first one."""
        return self.forward_tokens / max(1, self.candidates[0].forward_tokens)

    def to_dict(self) -> dict[str, Any]:
        return {
            "answers": [candidate.to_dict() for candidate in self.candidates],
            "chosen": self.candidates.index(self.chosen),
            "stopped": str(self.stopped),
            "forward_tokens": self.forward_tokens,
            "times": round(self.times, 3),
            "complete": self.standing.complete,
            "confidence": self.standing.confidence,
        }

    @property
    def standing(self) -> AnswersStanding:
        return AnswersStanding(
            len(self.candidates), len(self.complete), math.exp(self.chosen.sureness)
        )

    def __str__(self) -> str:
        if self.stopped is Enough.SURE:
            return "1 answer, which is not among the least sure"
        chosen = self.chosen
        return (
            f"{len(self.complete)} of {len(self.candidates)} answers are complete; number"
            f" {self.candidates.index(chosen) + 1} was chosen ({CHOICE_SCORE} {chosen.score:.2f});"
            f" {self.forward_tokens} forward tokens in all, {self.times:.1f} times those of one"
        )


def derived(seed: int, number: int) -> int:
    """Return the seed of another answer: none that other answers of a batch count up to."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{number}".encode()).digest()[:4], "big")
