"""Scores of answers that separate right from wrong, and thresholds below which one is unsure.

A threshold is set on one half of a task's questions, for questions like those and for no others:

- Without a `level`, it is the lowest at which (wrong + 1) / (given + 1) is at most the risk. This
  conformal estimate meets the risk on average over halves that could have been drawn.
- With a `level`, learn then test (arXiv 2110.01052): thresholds are tried from the strictest on, as
  long as an exact binomial test rejects that the risk is larger. The risk then holds with a
  probability of at least `level`, at less coverage.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import EntropixError
from ...profiles.confidence import READ_AGAIN, SCORES, score_of
from ...profiles.sections import Abstain
from .records import AnswerRecord
from .results import level_name
from .statistics import (
    Auroc,
    Bools,
    Curve,
    Estimate,
    Floats,
    Interval,
    auroc,
    binomial_cdf,
    rejection_ratio,
    risk_coverage,
    stratified_auroc,
    wilson,
)

COVERAGES = (0.5, 0.8)
BASELINE = "mean_logprob"
"""The score that others are compared with."""
RISK = 0.2
"""The share of wrong answers that is allowed by default."""
LEAST_GIVEN = 30
"""Answers at or above a threshold. On fewer the lowest threshold that fits is one that luck chose:
of 80 answers at a risk of 0.1, 0.19 of those given were wrong in truth."""
FIRST_COVERAGE, COVERAGE_STEP = 0.1, 0.025
"""Where the sequence of tests begins, and its steps."""


@dataclass(frozen=True)
class Separation:
    """How well one score separates an arm's right answers from its wrong ones."""

    arm: str
    score: str
    n: int
    pooled: Auroc
    within: Auroc
    """Of pairs within a level."""
    gain: Auroc
    """That, less that of `BASELINE` on the same answers."""
    rejection: Estimate
    """The prediction rejection ratio, pooled."""
    curve: Curve

    @property
    def accuracy_at(self) -> dict[float, float]:
        """The accuracy of the surest share of the answers, for each of `COVERAGES`."""
        return {coverage: self.curve.accuracy_at(coverage) for coverage in COVERAGES}

    def to_dict(self) -> dict[str, Any]:
        return {
            "arm": self.arm,
            "score": self.score,
            "n": self.n,
            "auroc": self.pooled.value,
            "auroc_interval": self.pooled.interval,
            "auroc_within_levels": self.within.value,
            "auroc_within_levels_interval": self.within.interval,
            "auroc_within_levels_gain": self.gain.value,
            "auroc_within_levels_gain_interval": self.gain.interval,
            "prr": self.rejection.value,
            "prr_interval": self.rejection.interval,
            "area_under_risk_coverage": self.curve.area,
            "accuracy_at": {str(at): value for at, value in self.accuracy_at.items()},
        }


def separations(records: Sequence[AnswerRecord]) -> list[Separation]:
    """Return how well each score does, for every arm."""
    by_arm: dict[str, list[AnswerRecord]] = defaultdict(list)
    for record in records:
        if record.tokens.logprob:
            by_arm[record.question.arm].append(record)
    return [
        _separation(arm, name, answers)
        for arm, answers in by_arm.items()
        for name in known(answers)
    ]


def known(records: Sequence[AnswerRecord]) -> list[str]:
    """Return the scores that all of some answers have."""
    scores = (SCORES | READ_AGAIN).items()
    return [name for name, one in scores if all(one.known(r.tokens) for r in records)]


def grades(records: Sequence[AnswerRecord]) -> Bools:
    return np.array([record.graded.right for record in records], dtype=bool)


def _separation(arm: str, name: str, records: Sequence[AnswerRecord]) -> Separation:
    scores = _values(records, name)
    right, strata = grades(records), [level_name(record) for record in records]
    within = stratified_auroc(scores, right, strata)
    gain = stratified_auroc(scores, right, strata, _values(records, BASELINE))
    rejection, curve = rejection_ratio(scores, right), risk_coverage(scores, right)
    pooled = auroc(scores, right)
    return Separation(arm, name, len(records), pooled, within, gain, rejection, curve)


def _values(records: Sequence[AnswerRecord], score: str) -> Floats:
    return np.array([score_of(score, record.tokens) for record in records])


def fit_threshold(
    records: Sequence[AnswerRecord],
    risk: float,
    level: float | None = None,
    score: str | None = None,
) -> Abstain:
    """Return which answers to call unsure.

    Args:
        records: answers to questions of one task, from its fit half.
        risk: the share of wrong answers that is allowed among those that are given.
        level: the probability with which the risk holds; None for the conformal estimate.
        score: a key of `SCORES`; None for the one with the highest AUROC on these answers.

    Raises:
        EntropixError: no threshold is strict enough, or it rests on too few answers.
    """
    if not records:
        raise EntropixError("no question of the half on which thresholds are set was answered")
    right = grades(records)
    values = {name: _values(records, name) for name in ([score] if score else known(records))}
    best = max(values, key=lambda name: auroc(values[name], right).value)
    if level is None:
        found = expected_threshold(values[best], right, risk)
    else:
        found = certain_threshold(values[best], right, risk, level)
    if found is None:
        raise EntropixError(
            f"no threshold of {best} keeps the risk at {risk:g}: of {len(records)} answers"
            f" {int(right.sum())} are right, and even the surest are wrong too often. Allow a"
            " higher --risk, take an easier task, or more questions (--limit)"
        )
    given = int((values[best] >= found).sum())
    if given < LEAST_GIVEN:
        raise EntropixError(
            f"the threshold of {best} would rest on {given} given answers, and {LEAST_GIVEN} are"
            " needed: with fewer, the risk is larger than it seems. Take more questions (--limit),"
            " or allow a higher --risk"
        )
    tasks = dict.fromkeys(record.question.task for record in records)
    return Abstain(best, found, risk, len(records), ", ".join(tasks))


def expected_threshold(scores: Floats, right: Bools, risk: float) -> float | None:
    """Return the lowest threshold with (wrong + 1) / (given + 1) ≤ risk; None if there is none."""
    curve = risk_coverage(scores, right)
    given = curve.coverage * len(scores)
    fitting = curve.thresholds[(curve.risk * given + 1) / (given + 1) <= risk]
    return float(fitting.min()) if len(fitting) else None


def certain_threshold(scores: Floats, right: Bools, risk: float, level: float) -> float | None:
    """Return the lowest threshold that learn then test accepts; None if it accepts none."""
    curve = risk_coverage(scores, right)
    accepted = None
    for coverage in np.arange(FIRST_COVERAGE, 1 + COVERAGE_STEP / 2, COVERAGE_STEP):
        place = min(int(np.searchsorted(curve.coverage, coverage - 1e-9)), len(curve.risk) - 1)
        given = round(float(curve.coverage[place]) * len(scores))
        wrong = round(float(curve.risk[place]) * given)
        if binomial_cdf(wrong, given, risk) > 1 - level:
            break
        accepted = float(curve.thresholds[place])
    return accepted


@dataclass(frozen=True)
class Abstention:
    """The effect of a threshold on the answers to the questions of one task."""

    n: int
    given: int
    """Answers that are not called unsure."""
    wrong: int
    """Of those that are given."""

    @classmethod
    def of(cls, abstain: Abstain, records: Sequence[AnswerRecord]) -> Abstention:
        right = grades(records)
        sure = _values(records, abstain.score) >= abstain.threshold
        return cls(len(records), int(sure.sum()), int((sure & ~right).sum()))

    @property
    def coverage(self) -> float:
        return self.given / self.n if self.n else 0.0

    @property
    def observed_risk(self) -> float:
        """The share of wrong answers among those that are given; NaN where none is."""
        return self.wrong / self.given if self.given else math.nan

    @property
    def interval(self) -> Interval:
        return wilson(self.wrong, self.given)
