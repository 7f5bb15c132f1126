"""The entropix sampler: the decision tree of a profile, computed on the device.

There the table of `tree.py` is a few small arrays, so a decision is a handful of operations without
a branch, and no round trip to the host.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import mlx.core as mx

from ..profiles.profile import Profile
from ..profiles.tree import Affine, TreeRow, table
from ..step import Metrics
from .base import CODE, Plan, Sampler
from .metrics.logits import Measured
from .planner import Planner


def build(name: str, profile: Profile, given: Mapping[str, float]) -> Sampler:
    """Build the sampler of a profile; given parameters replace the profile's base parameters."""
    profile = profile.replace({"base": given})
    rows = table(profile)
    return Sampler(
        name=name,
        profile=profile,
        plan=Planner(_plan, _pack(rows)),
        max_top_k=max(_highest_top_k(row) for row in rows),
        needs_order=True,
        draws=profile.adaptive.candidates,
        excludes_top=profile.resample.excludes_top,
    )


def _highest_top_k(row: TreeRow) -> int:
    """Return a bound on a row's top-k: agreement is at most 1, interaction strength unbounded."""
    highest = row.top_k.constant
    for name, slope in row.top_k.slopes.items():
        if slope > 0:
            highest += slope if name == "agreement" else math.inf
    return math.floor(min(row.top_k.high, max(row.top_k.low, highest)))


class _Table(NamedTuple):
    """The decision tree as two arrays."""

    bounds: mx.array
    """`(rows, 2, measurements)`: a row fits where all measurements lie above the first and,
    negated, above the second."""
    rows: mx.array
    """`(rows, parameters · (measurements + 3))`: what is chosen of a row that fits, packed so that
    one gather fetches it. Of each field of a `Plan`, in order: slopes, constant, low, high."""


def _pack(rows: list[TreeRow]) -> _Table:
    names = Metrics._fields
    unbounded = (-math.inf, math.inf)
    pairs = [[row.bounds.get(name, unbounded) for name in names] for row in rows]
    bounds = [[[low for low, _ in row], [-high for _, high in row]] for row in pairs]
    packed = [[_coefficients(p) for p in (_code(row), *row[2:])] for row in rows]
    return _Table(mx.array(bounds), mx.array(packed).reshape(len(rows), -1))


def _code(row: TreeRow) -> Affine:
    return Affine(CODE[row.strategy])


def _coefficients(parameter: Affine) -> list[float]:
    slopes = [parameter.slopes.get(name, 0.0) for name in Metrics._fields]
    return [*slopes, parameter.constant, parameter.low, parameter.high]


def _plan(measured: Measured, table: _Table) -> Plan:
    """Decide for each sequence.

    1. Every row is compared with the measurements at once; the first that fits is the row to take.
       (The last one always fits.)
    2. Its packed numbers are fetched, and cut into `(batch, parameters, measurements + 3)`.
    3. Each parameter is constant + Σ slope · measurement, clipped. The strategy is one of them, a
       constant: its code.
    """
    values = measured.values[:, None]  # (batch, 1, measurements)
    signed = values[:, None] * mx.array([[1.0], [-1.0]])  # (batch, 1, 2, measurements)
    row = (signed > table.bounds).all(axis=(-2, -1)).argmax(axis=-1)
    parameters = len(Plan._fields)
    chosen = table.rows[row].reshape(-1, parameters, table.rows.shape[-1] // parameters)
    slopes, constant, low, high = mx.split(chosen, [-3, -2, -1], axis=-1)
    result = constant + (slopes * values).sum(axis=-1, keepdims=True)
    result = mx.clip(result, low, high)
    return Plan(*(result[:, i, 0] for i in range(parameters)))
