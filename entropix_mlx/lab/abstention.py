"""Thresholds below which an answer is called unsure.

A threshold is set on one half of a task's questions, for questions like those and for no others: it
is the lowest at which (wrong + 1) / (given + 1) is at most the risk. This conformal estimate meets
the risk on average over halves that could have been drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import NamedTuple

import numpy as np

from ..errors import EntropixError, PromptError
from ..profiles.confidence import DEFAULT_SCORE, SCORES, score_of
from ..profiles.sections import Abstain
from .evaluate import AnswerRecord
from .statistics import Bools, Floats, wilson

LEAST_GIVEN = 30
"""Answers at or above a threshold. On fewer the lowest threshold that fits is one that luck chose:
of 80 answers at a risk of 0.1, 0.19 of those given were wrong in truth."""


def halves_of(records: Sequence[AnswerRecord]) -> tuple[list[AnswerRecord], list[AnswerRecord]]:
    """Return the answers to one half of the questions, and to the other half.

    Raises:
        PromptError: several arms gave the answers.
    """
    if len(arms := {record.arm for record in records}) > 1:
        named = ", ".join(sorted(arms))
        raise PromptError(
            f"answers of {named}: a threshold holds for one arm, so name one by --arm"
        )
    halves: tuple[list[AnswerRecord], list[AnswerRecord]] = ([], [])
    for record in records:
        halves[sha256(record.question.encode()).digest()[0] % 2].append(record)
    return halves


def known(records: Sequence[AnswerRecord]) -> list[str]:
    """Return the scores that all of some answers have."""
    return [name for name, one in SCORES.items() if all(one.known(r.tokens) for r in records)]


def values_of(records: Sequence[AnswerRecord], score: str) -> Floats:
    return np.array([score_of(score, record.tokens) for record in records])


def grades(records: Sequence[AnswerRecord]) -> Bools:
    return np.array([record.right for record in records], dtype=bool)


def fit_threshold(
    records: Sequence[AnswerRecord], risk: float, score: str = DEFAULT_SCORE
) -> Abstain:
    """Return which answers to call unsure.

    Args:
        records: answers to questions of one task, from its fit half.
        risk: the share of wrong answers that is allowed among those that are given.
        score: a key of `SCORES`.

    Raises:
        EntropixError: no threshold is strict enough, or it rests on too few answers.
    """
    if not records:
        raise EntropixError("no question of the half on which thresholds are set was answered")
    right = grades(records)
    values = values_of(records, score)
    threshold = lowest_threshold(values, right, risk)
    if threshold is None:
        raise EntropixError(
            f"no threshold of {score} keeps the risk at {risk:g}: of {len(records)} answers"
            f" {int(right.sum())} are right, and even the surest are wrong too often. Allow a"
            " higher --risk, take an easier task, or more questions (--limit)"
        )
    given = int((values >= threshold).sum())
    if given < LEAST_GIVEN:
        raise EntropixError(
            f"the threshold of {score} would rest on {given} given answers, and {LEAST_GIVEN} are"
            " needed: with fewer, the risk is larger than it seems. Take more questions (--limit),"
            " or allow a higher --risk"
        )
    tasks = ", ".join(dict.fromkeys(record.task for record in records))
    return Abstain(score=score, threshold=threshold, risk=risk, n=len(records), task=tasks)


def lowest_threshold(scores: Floats, right: Bools, risk: float) -> float | None:
    """Return the lowest threshold with (wrong + 1) / (given + 1) ≤ risk; None if there is none."""
    order = np.argsort(-scores, kind="stable")
    given, wrong = np.arange(1, len(scores) + 1), (~right[order]).cumsum()
    ends = np.append(scores[order][1:] != scores[order][:-1], True)  # equal scores go together
    fitting = np.flatnonzero(ends & ((wrong + 1) / (given + 1) <= risk))
    return float(scores[order][fitting[-1]]) if len(fitting) else None


class Abstention(NamedTuple):
    """The effect of a threshold on the answers to the questions of one task."""

    n: int
    given: int
    """Answers that are not called unsure."""
    wrong: int
    """Of those that are given."""

    @classmethod
    def of(cls, abstain: Abstain, records: Sequence[AnswerRecord]) -> Abstention:
        right = grades(records)
        sure = values_of(records, abstain.score) >= abstain.threshold
        return cls(len(records), int(sure.sum()), int((sure & ~right).sum()))

    def __str__(self) -> str:
        if not self.given:
            return f"none of {self.n} answers is sure: coverage 0"
        risk, (low, high) = self.wrong / self.given, wilson(self.wrong, self.given)
        return (
            f"{self.given} of {self.n} answers given, coverage {self.given / self.n:.1%}; of these"
            f" {self.wrong} wrong, risk {risk:.1%} ({low:.1%} to {high:.1%})"
        )
