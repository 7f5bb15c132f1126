"""Thresholds for fields: from which confidence on a field's value may be taken without a look.

A threshold is set on one half of the labelled rows and checked on the other. It is the lowest at
which (wrong + 1) / (taken + 1) is at most the risk: a conformal estimate, which holds on average
for documents like those, and for no others. So with a risk of r no threshold can be found on fewer
than 1/r − 1 rows, even where all are right.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...extraction.rows import Row, flattened
from ..evaluation.confidence import expected_threshold
from ..evaluation.statistics import Bools, Floats, auroc, risk_coverage


@dataclass(frozen=True)
class FieldThreshold:
    """What was found for one field."""

    name: str
    threshold: float
    """The least confidence; infinity where no threshold keeps the risk."""
    right: int
    """Rows of both halves whose value is right, of `n`."""
    n: int
    auroc: float
    """How well its confidence separates right values from wrong ones, on both halves."""
    taken: int
    """Rows of the half that was held out whose value is taken, of `held_out`."""
    wrong: int
    """Of these."""
    held_out: int
    least_risk: float
    """The smallest risk that a threshold on the fit half could have kept."""


def rows_needed(risk: float) -> int:
    """Return how many rows without a mistake the fit half needs at least."""
    return math.ceil(1 / risk - 1 - 1e-9)


def fit_fields(
    rows: Sequence[Row], labels: Sequence[Mapping[str, Any]], risk: float
) -> list[FieldThreshold]:
    """Return a threshold for each field that any label has.

    Args:
        rows: what was extracted; every other one belongs to the fit half.
        labels: the right fields of each.
        risk: the share of wrong values that is allowed among those that are taken.
    """
    flat = [flattened(label) for label in labels]
    names = dict.fromkeys(name for label in flat for name in label)
    return [_fit(name, rows, flat, risk) for name in names]


def is_right(value: Any, label: Any) -> bool:
    """Return whether a value is the label; texts may differ in their white space."""
    if isinstance(value, str) and isinstance(label, str):
        return value.split() == label.split()
    if isinstance(value, bool) or isinstance(label, bool):
        return value is label
    return bool(value == label)


def _fit(
    name: str, rows: Sequence[Row], labels: Sequence[Mapping[str, Any]], risk: float
) -> FieldThreshold:
    given = [(row, label) for row, label in zip(rows, labels, strict=True) if name in row.fields]
    right: Bools = np.array(
        [is_right(row.fields[name], label.get(name)) for row, label in given], dtype=bool
    )
    scores: Floats = np.array([row.confidence[name] for row, _ in given], dtype=float)
    fitted = np.arange(len(given)) % 2 == 0
    found = expected_threshold(scores[fitted], right[fitted], risk) if fitted.any() else None
    threshold = math.inf if found is None else found
    taken = ~fitted & (scores >= threshold)
    return FieldThreshold(
        name=name,
        threshold=threshold,
        right=int(right.sum()),
        n=len(given),
        auroc=auroc(scores, right).value if given else math.nan,
        taken=int(taken.sum()),
        wrong=int((taken & ~right).sum()),
        held_out=int((~fitted).sum()),
        least_risk=_least_risk(scores[fitted], right[fitted]),
    )


def _least_risk(scores: Floats, right: Bools) -> float:
    """Return the smallest (wrong + 1) / (taken + 1) over all thresholds; 1 without rows."""
    curve = risk_coverage(scores, right)
    taken = curve.coverage * len(scores)
    return float(((curve.risk * taken + 1) / (taken + 1)).min()) if len(scores) else 1.0
