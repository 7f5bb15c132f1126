"""Does it know when it is wrong? Scores of answers, and thresholds below which to call one unsure.

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
from ...profiles.profile import Profile
from ...profiles.sections import Abstain
from ...profiles.tree import table
from ...step import Metrics, Strategy
from . import grading
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
SHARES = {Strategy.ARGMAX: 1, Strategy.ADAPTIVE: -1, Strategy.BRANCH: -1}
"""Strategies whose share of an answer's tokens is tried as a score, and its sign: a larger score
is surer."""
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
        """Return it as a record, with the curve at every tenth of the answers."""
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


def separations(records: Sequence[AnswerRecord], profile: Profile) -> list[Separation]:
    """Return how well each score does, for every arm.

    Args:
        records: the answers.
        profile: whose thresholds say which strategy a token would have: with them the shares of
            strategies are known for answers of any sampler.
    """
    by_arm: dict[str, list[AnswerRecord]] = defaultdict(list)
    for record in records:
        if record.tokens.logprob:
            by_arm[record.question.arm].append(record)
    return [
        _separation(arm, name, answers, values)
        for arm, answers in by_arm.items()
        for name, values in all_scores(answers, profile).items()
    ]


def all_scores(records: Sequence[AnswerRecord], profile: Profile) -> dict[str, Floats]:
    """Return every score of some answers, by name; higher is surer."""
    scores = {name: _values(records, name) for name in SCORES} | _shares(records, profile)
    if any(record.tokens.branches for record in records):
        scores["fork_agreement"] = np.array([_agreement(record) for record in records])
    return scores


def grades(records: Sequence[AnswerRecord]) -> Bools:
    """Return which answers are right."""
    return np.array([record.graded.right for record in records], dtype=bool)


def _separation(arm: str, name: str, records: Sequence[AnswerRecord], scores: Floats) -> Separation:
    right, strata = grades(records), [level_name(record) for record in records]
    within = stratified_auroc(scores, right, strata)
    curve = risk_coverage(scores, right)
    return Separation(arm, name, len(records), auroc(scores, right), within, curve)


def _values(records: Sequence[AnswerRecord], score: str) -> Floats:
    return np.array([score_of(score, record.tokens) for record in records])


def _shares(records: Sequence[AnswerRecord], profile: Profile) -> dict[str, Floats]:
    """Return the share of an answer's tokens at which each strategy would be decided."""
    rows = [row for row in table(profile) if {"entropy", "varentropy", "margin"} >= set(row.bounds)]

    def decided(entropy: float, varentropy: float, margin: float) -> Strategy:
        metrics = Metrics(entropy, varentropy, margin, 0.0, 0.0, 0.0, 0.0, 0.0)
        return next(row.strategy for row in rows if row.fits(metrics))

    every = [
        list(map(decided, one.tokens.entropy, one.tokens.varentropy, one.tokens.margin))
        for one in records
    ]
    return {
        f"share_of_{strategy}": np.array(
            [sign * each.count(strategy) / len(each) for each in every]
        )
        for strategy, sign in SHARES.items()
    }


def _agreement(record: AnswerRecord) -> float:
    """Return the share of the branches of the first fork that say what the answer says.

    An answer that did not fork agrees with itself: 1.
    """
    if not record.tokens.branches:
        return 1.0
    rule = record.question.rule
    said = grading.extracted(rule, record.text)
    same = [grading.extracted(rule, branch) == said for branch in record.tokens.branches]
    return sum(same) / len(same)


def fit_threshold(
    records: Sequence[AnswerRecord],
    risk: float,
    level: float | None = None,
    score: str | None = None,
) -> Abstain:
    """Return which answers to call unsure.

    Args:
        records: answers to questions of one task, which nothing is reported of afterwards.
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
        """Return what a threshold does with the answers of one arm to one task."""
        asked, right = records[0].question, grades(records)
        sure = _values(records, abstain.score) >= abstain.threshold
        coverages = {
            name: risk_coverage(_values(records, name), right).coverage_at(abstain.risk)
            for name in SCORES
        }
        best = max(coverages, key=lambda name: coverages[name])
        return cls(
            asked.arm,
            set_on,
            asked.task,
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
        """The share of answers that are given."""
        return self.given / self.n if self.n else 0.0

    @property
    def observed_risk(self) -> float:
        """The share of wrong answers among those that are given; NaN where none is."""
        return self.wrong / self.given if self.given else math.nan

    @property
    def interval(self) -> Interval:
        """Wilson's interval of the observed risk."""
        return wilson(self.wrong, self.given)

    def to_dict(self) -> dict[str, Any]:
        """Return it as a record."""
        return vars(self) | {"coverage": self.coverage, "observed_risk": self.observed_risk}


def abstentions(
    records: Sequence[AnswerRecord], profile: Abstain, risk: float = RISK
) -> list[Abstention]:
    """Return what thresholds do with the answers of each arm to each task.

    Args:
        records: the answers.
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
