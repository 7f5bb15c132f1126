"""The entropix policy: the decision tree of a profile, computed on the device.

There the table of `tree.py` is a few small arrays, so a decision is a handful of operations without
a branch, and no round trip to the host.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import mlx.core as mx

from ..profiles.profile import Profile
from ..profiles.tree import Row, table
from ..step import Metrics
from .metrics import Measured
from .policy import CODE, Plan, Policy


def build(name: str, profile: Profile, given: Mapping[str, float]) -> Policy:
    """Build the policy of a profile; given parameters replace the profile's base parameters."""
    profile = profile.replace({"base": given})
    rows = table(profile)
    return Policy(
        name=name,
        profile=profile,
        plan=_Planner(rows),
        think=profile.think,
        rollouts=profile.branch,
        confidence=profile.confidence,
        max_top_k=max(_highest_top_k(row) for row in rows),
        needs_order=True,
        draws=profile.adaptive.candidates,
        excludes_top=profile.resample.excludes_top,
    )


def _highest_top_k(row: Row) -> int:
    """Return a bound on a row's top-k: agreement is at most 1, interaction strength unbounded."""
    highest = row.top_k.constant
    for name, slope in row.top_k.slopes.items():
        if slope > 0:
            highest += slope if name == "agreement" else math.inf
    return math.floor(min(row.top_k.high, max(row.top_k.low, highest)))


class _Planner:
    """A table as arrays, and how they decide."""

    def __init__(self, rows: list[Row]) -> None:
        names = Metrics._fields
        parameters = [(r.temperature, r.top_p, r.top_k, r.min_p) for r in rows]
        unbounded = (-math.inf, math.inf)
        bounds = [[row.bounds.get(name, unbounded) for name in names] for row in rows]
        self._bounds = mx.array(bounds)  # (rows, measurements, 2)
        self._slopes = mx.array(
            [[[p.slopes.get(name, 0.0) for name in names] for p in row] for row in parameters]
        )  # (rows, parameters, measurements)
        self._constants = mx.array([[p.constant for p in row] for row in parameters])
        self._low = mx.array([[p.low for p in row] for row in parameters])
        self._high = mx.array([[p.high for p in row] for row in parameters])
        self._codes = mx.array([CODE[row.strategy] for row in rows])

    def __call__(self, measured: Measured) -> Plan:
        values = mx.stack(list(measured.metrics), axis=-1)[:, None]  # (batch, 1, measurements)
        inside = (values > self._bounds[..., 0]) & (values < self._bounds[..., 1])
        fits = inside.all(axis=-1)
        row = fits.argmax(axis=-1)  # the first that fits; the last one always does
        slopes, constants = self._slopes[row], self._constants[row]
        parameters = constants + (slopes * values).sum(axis=-1)
        parameters = mx.clip(parameters, self._low[row], self._high[row])
        temperature, top_p, top_k, min_p = parameters.T
        return Plan(self._codes[row], temperature, top_p, mx.floor(top_k).astype(mx.int32), min_p)
