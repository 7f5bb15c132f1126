"""Does it know when it is wrong? How well each score tells right answers from wrong ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...profiles.confidence import SCORES, score_of
from ...profiles.profile import Profile
from ...profiles.tree import table
from ...step import Metrics, Strategy
from . import grading
from .auroc import Auroc, Bools, Curve, auroc, risk_coverage, stratified_auroc
from .fitted import calibrated_entropy, combined
from .records import Record
from .results import rung_name
from .statistics import Floats

COVERAGES = (0.5, 0.8)
SHARES = (Strategy.ARGMAX, Strategy.ADAPTIVE, Strategy.BRANCH)
"""Strategies whose share of an answer's tokens is tried as a score."""
SURE = {Strategy.ARGMAX}
"""A larger share of these is surer; of the others, less sure."""


@dataclass(frozen=True)
class Certainty:
    """How well one score does with the answers of one arm."""

    arm: str
    score: str
    n: int
    pooled: Auroc
    within: Auroc
    """Of pairs within a rung."""
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
            "auroc_within_rungs": self.within.value,
            "auroc_within_rungs_interval": self.within.interval,
            "area_under_risk_coverage": self.curve.area,
            "accuracy_at": {str(at): value for at, value in self.accuracy_at.items()},
            "risk_at_coverage": {str(at): 1 - self.curve.accuracy_at(at) for at in places},
        }


def certainties(records: Sequence[Record], profile: Profile) -> list[Certainty]:
    """Return how well each score does, for every arm.

    Args:
        records: the answers.
        profile: whose thresholds say which strategy a token would have: with them the shares of
            strategies can be told for answers of any sampler.
    """
    by_arm: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        if record.tokens.logprob:
            by_arm[record.question.arm].append(record)
    return [
        _certainty(arm, name, answers, values)
        for arm, answers in by_arm.items()
        for name, values in all_scores(answers, profile).items()
    ]


def all_scores(records: Sequence[Record], profile: Profile) -> dict[str, Floats]:
    """Return every score of some answers, by name; higher is surer."""
    right = grades(records)
    scores = {
        name: np.array([score_of(name, record.tokens) for record in records]) for name in SCORES
    }
    plain = list(scores.values())
    scores["calibrated_entropy"] = calibrated_entropy(records, right)
    scores |= _shares(records, profile)
    if any(record.tokens.branches for record in records):
        scores["fork_agreement"] = np.array([_agreement(record) for record in records])
    length = np.array([-float(len(record.tokens.logprob)) for record in records])
    scores["combined"] = combined(records, np.column_stack([*plain, length]), right)
    return scores


def grades(records: Sequence[Record]) -> Bools:
    """Return which answers are right."""
    return np.array([record.graded.right for record in records], dtype=bool)


def _certainty(arm: str, name: str, records: Sequence[Record], scores: Floats) -> Certainty:
    right = grades(records)
    strata = [rung_name(record) for record in records]
    return Certainty(
        arm,
        name,
        len(records),
        auroc(scores, right),
        stratified_auroc(scores, right, strata),
        risk_coverage(scores, right),
    )


def _shares(records: Sequence[Record], profile: Profile) -> dict[str, Floats]:
    """Return the share of an answer's tokens at which each strategy would be decided."""
    rows = [row for row in table(profile) if {"entropy", "varentropy", "margin"} >= set(row.bounds)]
    decided = []
    for record in records:
        tokens = record.tokens
        places = zip(tokens.entropy, tokens.varentropy, tokens.margin, strict=True)
        strategies = [
            next(row.strategy for row in rows if row.fits(_metrics(*place))) for place in places
        ]
        decided.append([strategies.count(strategy) / len(strategies) for strategy in SHARES])
    shares = np.array(decided)
    return {
        f"share_of_{strategy}": shares[:, place] if strategy in SURE else -shares[:, place]
        for place, strategy in enumerate(SHARES)
    }


def _metrics(entropy: float, varentropy: float, margin: float) -> Metrics[float]:
    return Metrics(entropy, varentropy, margin, 0.0, 0.0, 0.0, 0.0, 0.0)


def _agreement(record: Record) -> float:
    """Return the share of the rollouts of the first fork that say what the answer says.

    An answer that did not fork agrees with itself: 1.
    """
    if not record.tokens.branches:
        return 1.0
    rule = record.question.rule
    said = grading.extracted(rule, record.text)
    same = [grading.extracted(rule, branch) == said for branch in record.tokens.branches]
    return sum(same) / len(same)
