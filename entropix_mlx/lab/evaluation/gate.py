"""The gate of ``answers="auto"``: the score of a first answer below which more answers are drawn.

All answers to some questions are drawn once. What a gate would have gained and cost on them then
follows for every threshold: below it the chosen answer counts and costs all, above it the first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from ...errors import EntropixError
from . import grading
from .questions import Problem
from .statistics import Interval, bootstrap_mean

DIGITS = 4
SHARE = 0.35
"""The share of questions to which more answers are drawn, unless the caller says otherwise."""


@dataclass(frozen=True)
class GatedAnswer:
    """The answers to one question, drawn behind an open gate."""

    score: float
    """Of the first answer."""
    gain: int
    """1 where the chosen answer is right and the first is wrong, −1 where it is the other way."""
    first_tokens: int
    tokens: int
    """Of all answers: what went through the model."""

    @classmethod
    def of(cls, question: Problem, line: dict[str, Any]) -> GatedAnswer:
        """Return what the line of an answer (`PlannedAnswer.record`) says."""
        several = line["answers"]
        first = several["answers"][0]
        right = grading.is_right(question.rule, first["text"], question.answers)
        return cls(
            score=-math.inf if first["score"] is None else first["score"],
            gain=line["graded"]["right"] - right,
            first_tokens=first["forward_tokens"],
            tokens=several["forward_tokens"],
        )


@dataclass(frozen=True)
class GateEffect:
    """What a gate does for some questions."""

    n: int
    share: float
    """Of the questions to which more answers are drawn."""
    points: float
    """Accuracy, less that of the first answers alone."""
    interval: Interval
    """Of `points`: bootstrap over questions, at 95 %."""
    price: float
    """Forward tokens, as a multiple of those of the first answers."""

    @classmethod
    def of(cls, threshold: float, answers: Sequence[GatedAnswer]) -> GateEffect:
        opened = _opened(threshold, answers)
        gains = [100.0 * one.gain if one.score < threshold else 0.0 for one in answers]
        return cls(
            n=len(answers),
            share=len(opened) / len(answers),
            points=fmean(gains),
            interval=bootstrap_mean(gains),
            price=_price(opened, answers),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return what a profile records."""
        points = [round(value, DIGITS) for value in (self.points, *self.interval)]
        price, share = round(self.price, DIGITS), round(self.share, DIGITS)
        return {"n": self.n, "share": share, "points": points, "price": price}


def fit_gate(
    answers: Sequence[GatedAnswer], share: float | None = None, price: float | None = None
) -> float:
    """Return the highest threshold that opens the gate for at most a share of the questions, or
    costs at most a multiple of the first answers' tokens.

    Raises:
        EntropixError: there are no answers.
    """
    if not answers:
        raise EntropixError("no question of the half on which the gate is set was answered")
    if price is None:
        share = SHARE if share is None else share
    found = -math.inf
    for threshold in sorted({one.score for one in answers}):
        opened = _opened(threshold, answers)
        too_many = share is not None and len(opened) > share * len(answers)
        if too_many or (price is not None and _price(opened, answers) > price):
            break
        found = threshold
    return found


def _opened(threshold: float, answers: Sequence[GatedAnswer]) -> list[GatedAnswer]:
    return [one for one in answers if one.score < threshold]


def _price(opened: Sequence[GatedAnswer], answers: Sequence[GatedAnswer]) -> float:
    first = sum(one.first_tokens for one in answers)
    return 1 + sum(one.tokens - one.first_tokens for one in opened) / max(1, first)
