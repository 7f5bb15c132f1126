"""Scores that must be fitted on answers whose grade is known: never on those that they score.

The questions are cut into folds by a hash of what they are about. Each fold is scored by what was
fitted on the others (cross-fitting).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np

from .auroc import Bools
from .records import Record
from .statistics import Floats

FOLDS = 5
RIDGE = 1.0
"""Weight of the squared coefficients: it keeps them finite where the answers can be separated."""
NEWTON_STEPS = 30

Fit = Callable[[Bools], Callable[[Bools], Floats]]
"""Takes which answers to fit on; returns what scores those that are marked."""


def fold_of(record: Record) -> int:
    """Return the fold of an answer; all answers to a question are in the same one."""
    return hashlib.sha256(record.question.id.encode()).digest()[0] % FOLDS


def cross_fitted(records: Sequence[Record], fit: Fit) -> Floats:
    """Return a score for each answer, which was fitted on the answers to other questions."""
    folds = np.array([fold_of(record) for record in records])
    scores = np.zeros(len(records))
    for fold in range(FOLDS):
        held_out = folds == fold
        if held_out.any():
            scores[held_out] = fit(~held_out)(held_out)
    return scores


def calibrated_entropy(records: Sequence[Record], right: Bools) -> Floats:
    """Return the calibrated entropy score, after arXiv 2605.28264, with its sign turned round.

    The reference is the distribution function F of the entropies of all tokens of right answers.
    The score of an answer is F(mean entropy) + F(largest entropy); here higher is surer.
    """

    def fit(fitted: Bools) -> Callable[[Bools], Floats]:
        pooled = [
            entropy
            for record, take in zip(records, fitted & right, strict=True)
            if take
            for entropy in record.tokens.entropy
        ]
        reference = np.sort(np.array(pooled or [0.0]))

        def share_below(values: Sequence[float]) -> Floats:
            below: Floats = np.searchsorted(reference, values, side="right") / len(reference)
            return below

        def score(wanted: Bools) -> Floats:
            answers = [record.tokens.entropy or (np.inf,) for record in _of(records, wanted)]
            means = [float(np.mean(entropies)) for entropies in answers]
            return -(share_below(means) + share_below([max(e) for e in answers]))

        return score

    return cross_fitted(records, fit)


def combined(records: Sequence[Record], features: Floats, right: Bools) -> Floats:
    """Return the log odds of a logistic regression on several scores.

    Args:
        records: the answers.
        features: (answers, scores); they are standardized on the answers of the fit.
        right: their grades.
    """

    def fit(fitted: Bools) -> Callable[[Bools], Floats]:
        middle, spread = features[fitted].mean(axis=0), features[fitted].std(axis=0) + 1e-9
        design = _with_constant((features - middle) / spread)
        weights = logistic(design[fitted], right[fitted])

        def score(wanted: Bools) -> Floats:
            odds: Floats = design[wanted] @ weights
            return odds

        return score

    return cross_fitted(records, fit)


def logistic(design: Floats, right: Bools, ridge: float = RIDGE) -> Floats:
    """Return the coefficients of a ridge logistic regression, by Newton's method.

    Args:
        design: (answers, features); the first column is the constant, which is not penalized.
        right: what is predicted.
        ridge: weight of half the sum of squared coefficients.
    """
    penalty = ridge * np.eye(design.shape[1])
    penalty[0, 0] = 1e-9
    weights = np.zeros(design.shape[1])
    for _ in range(NEWTON_STEPS):
        p = 1 / (1 + np.exp(-np.clip(design @ weights, -30, 30)))
        gradient = design.T @ (p - right) + penalty @ weights
        hessian = (design * (p * (1 - p))[:, None]).T @ design + penalty
        step = np.linalg.solve(hessian, gradient)
        weights = weights - step
        if np.abs(step).max() < 1e-9:
            break
    return weights


def _with_constant(features: Floats) -> Floats:
    return np.column_stack([np.ones(len(features)), features])


def _of(records: Sequence[Record], wanted: Bools) -> list[Record]:
    return [record for record, take in zip(records, wanted, strict=True) if take]
