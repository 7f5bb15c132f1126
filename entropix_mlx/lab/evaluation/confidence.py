"""Scores of answers that separate right from wrong, and thresholds below which one is unsure.

A threshold is the lowest one with which the risk (the share of wrong answers among those that are
given) is small enough on one half of a task's questions. What "small enough" means:

- Without a `level`, (wrong + 1) / (given + 1) is at most the risk. This is the conformal estimate:
  it counts the next answer as a wrong one. It aims at the risk on average over halves that could
  have been drawn, and may be exceeded on a given one.
- With a `level`, thresholds are tried from the strictest on, in steps of coverage, as long as the
  exact test that the risk is larger can be rejected (learn then test, arXiv 2110.01052, with a
  fixed sequence). The risk then holds with a probability of at least `level`, at less coverage.

Either way it holds for questions like those of the half, and for no others.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import EntropixError
from ...profiles.confidence import NO_SCORE, SCORES, score_of
from ...profiles.sections import Abstain
from .questions import FIT, REPORT
from .records import AnswerRecord
from .results import level_name
from .statistics import (
    Auroc,
    Bools,
    Curve,
    Floats,
    Interval,
    auroc,
    binomial_cdf,
    risk_coverage,
    stratified_auroc,
    wilson,
)

COVERAGES = (0.5, 0.8)
RISK = 0.2
"""The share of wrong answers that is allowed, unless the caller says otherwise."""
FIRST_COVERAGE, COVERAGE_STEP = 0.1, 0.025
"""Where the fixed sequence of tests begins, and its steps."""


@dataclass(frozen=True)
class Separation:
    """How well one score tells the right answers of one arm from the wrong ones."""

    arm: str
    score: str
    n: int
    pooled: Auroc
    within: Auroc
    """Of pairs within a level."""
    curve: Curve

    @property
    def accuracy_at(self) -> dict[float, float]:
        """The accuracy of the surest share of the answers, for each of `COVERAGES`."""
        return {coverage: self.curve.accuracy_at(coverage) for coverage in COVERAGES}

    def to_dict(self) -> dict[str, Any]:
        places = [round(0.1 * place, 1) for place in range(1, 11)]
        return {
            "arm": self.arm,
            "score": self.score,
            "n": self.n,
            "auroc": self.pooled.value,
            "auroc_interval": self.pooled.interval,
            "auroc_within_levels": self.within.value,
            "auroc_within_levels_interval": self.within.interval,
            "area_under_risk_coverage": self.curve.area,
            "accuracy_at": {str(at): value for at, value in self.accuracy_at.items()},
            "risk_at_coverage": {str(at): 1 - self.curve.accuracy_at(at) for at in places},
        }


def separations(records: Sequence[AnswerRecord]) -> list[Separation]:
    """Return how well each score does, for every arm."""
    by_arm: dict[str, list[AnswerRecord]] = defaultdict(list)
    for record in records:
        if record.tokens.logprob:
            by_arm[record.question.arm].append(record)
    return [_separation(arm, name, answers) for arm, answers in by_arm.items() for name in SCORES]


def grades(records: Sequence[AnswerRecord]) -> Bools:
    return np.array([record.graded.right for record in records], dtype=bool)


def _separation(arm: str, name: str, records: Sequence[AnswerRecord]) -> Separation:
    scores = _values(records, name)
    right, strata = grades(records), [level_name(record) for record in records]
    within = stratified_auroc(scores, right, strata)
    curve = risk_coverage(scores, right)
    return Separation(arm, name, len(records), auroc(scores, right), within, curve)


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
        level: see the module.
        score: a key of `SCORES`; None for the one with the highest AUROC on these answers.

    Raises:
        EntropixError: no threshold is strict enough.
    """
    if not records:
        raise EntropixError("no question of the half on which thresholds are set was answered")
    right = grades(records)
    values = {name: _values(records, name) for name in ([score] if score else SCORES)}
    best = max(values, key=lambda name: auroc(values[name], right).value)
    found = (
        expected_threshold(values[best], right, risk)
        if level is None
        else certain_threshold(values[best], right, risk, level)
    )
    if found is None:
        raise EntropixError(
            f"no threshold of {best} keeps the risk at {risk:g}: of {len(records)} answers"
            f" {int(right.sum())} are right, and even the surest are wrong too often. Allow a"
            " higher --risk, take an easier task, or more questions (--limit)"
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
    """What a threshold does with one arm's answers to the questions of one task."""

    arm: str
    set_on: str
    """The task on one half of which it was set; or "the profile"."""
    task: str
    score: str
    risk: float
    """The one that it was set for."""
    n: int
    given: int
    """Answers that are not called unsure."""
    wrong: int
    """Of those that are given."""
    best_score: str
    """The score and coverage of the best threshold in hindsight, chosen on these answers. No
    threshold that is chosen beforehand can be expected to reach it."""
    best_coverage: float

    @classmethod
    def of(cls, abstain: Abstain, records: Sequence[AnswerRecord], set_on: str) -> Abstention:
        question, right = records[0].question, grades(records)
        sure = _values(records, abstain.score) >= abstain.threshold
        coverages = {
            name: risk_coverage(_values(records, name), right).coverage_at(abstain.risk)
            for name in SCORES
        }
        best = max(coverages, key=lambda name: coverages[name])
        return cls(
            question.arm,
            set_on,
            question.task,
            abstain.score,
            abstain.risk,
            len(records),
            int(sure.sum()),
            int((sure & ~right).sum()),
            best,
            coverages[best],
        )

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

    def to_dict(self) -> dict[str, Any]:
        return vars(self) | {"coverage": self.coverage, "observed_risk": self.observed_risk}


def abstentions(
    records: Sequence[AnswerRecord], profile: Abstain, risk: float = RISK
) -> list[Abstention]:
    """Return what thresholds do with the answers of each arm to each task.

    Args:
        records: of any arms and tasks.
        profile: the threshold of a profile, which is tried on all answers if there is one. Without
            it, and where both halves of a task were answered, a threshold is set on its one half
            and tried on the other, and on the reported half of every other task.
        risk: for which those are set.
    """
    groups: dict[tuple[str, str], list[AnswerRecord]] = defaultdict(list)
    for record in records:
        groups[record.question.arm, record.question.task].append(record)
    if profile.score != NO_SCORE:
        return [Abstention.of(profile, group, "the profile") for group in groups.values()]
    found = []
    for (arm, set_on), group in groups.items():
        with suppress(EntropixError):  # no threshold is strict enough: there is nothing to try
            abstain = fit_threshold(_half(group, FIT), risk)
            others = [_half(others, REPORT) for (by, _), others in groups.items() if by == arm]
            found += [Abstention.of(abstain, other, set_on) for other in others if other]
    return found


def _half(records: Sequence[AnswerRecord], split: str) -> list[AnswerRecord]:
    return [record for record in records if record.question.split == split]
