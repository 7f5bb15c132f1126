"""The entropix decision tree, as a table: one row a strategy, the first that fits wins.

A row says within which bounds the measurements must lie, and each sampling parameter as an affine
function of them, clipped: that covers every formula of the published sampler. On the device the
table is a few small arrays, so a decision is a handful of operations without a branch, and no
round trip to the host. The numbers come from the profile; `profiles/reference.toml` states each
formula beside its coefficients.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import mlx.core as mx

from .metrics import Measured
from .plan import CODE, Plan, Policy
from .profile import Profile
from .step import Metrics, Strategy


class Affine(NamedTuple):
    """constant + Σ slope · measurement, clipped to [low, high]."""

    constant: float
    slopes: dict[str, float] = {}  # noqa: RUF012 - never mutated
    low: float = -math.inf
    high: float = math.inf


class Row(NamedTuple):
    """A strategy: when it applies, and the parameters it samples with."""

    strategy: Strategy
    bounds: dict[str, tuple[float, float]]
    """By measurement: it must lie above the first number and below the second."""
    temperature: Affine
    top_p: Affine
    top_k: Affine
    """Rounded down to a whole number after clipping."""
    min_p: Affine


def entropix(profile: Profile) -> Policy:
    """Build the policy of a profile."""
    rows = table(profile)
    return Policy(
        name="entropix",
        profile=profile,
        plan=_Planner(rows),
        max_top_k=max(_highest_top_k(row) for row in rows),
        needs_order=True,
        draws=profile.adaptive.candidates,
        excludes_top=profile.resample.excludes_top,
        rollouts=profile.branch,
    )


def table(profile: Profile) -> list[Row]:
    """Return the decision tree of a profile, in the order of precedence."""
    at = profile.thresholds
    anything = math.inf
    lost = {
        "entropy": (at.think_min_entropy, anything),
        "varentropy": (-anything, at.think_max_varentropy),
    }
    sure = {
        "entropy": (-anything, at.low_entropy),
        "varentropy": (-anything, at.low_varentropy),
    }
    fork = {
        "entropy": (-anything, at.branch_max_entropy),
        "varentropy": (at.branch_min_varentropy, anything),
        "margin": (-anything, at.branch_max_margin),
    }
    chaos = {
        "entropy": (at.resample_min_entropy, anything),
        "varentropy": (at.resample_min_varentropy, anything),
    }
    return [
        _base_row(profile, Strategy.ARGMAX, sure),
        _think_row(profile, Strategy.THINK, lost),
        _think_row(profile, Strategy.THINK_SAMPLE, lost),
        _branch_row(profile, fork),
        _resample_row(profile, chaos),
        _adaptive_row(profile),
    ]


def _base_row(profile: Profile, strategy: Strategy, bounds: dict[str, tuple[float, float]]) -> Row:
    base = profile.base
    return Row(
        strategy,
        bounds,
        temperature=Affine(base.temperature),
        top_p=Affine(base.top_p),
        top_k=Affine(base.top_k),
        min_p=Affine(base.min_p),
    )


def _think_row(profile: Profile, strategy: Strategy, bounds: dict[str, tuple[float, float]]) -> Row:
    rule, temperature = profile.think, profile.base.temperature
    return _base_row(profile, strategy, bounds)._replace(
        temperature=Affine(
            temperature * rule.temperature_offset,
            {"attention_entropy": temperature * rule.temperature_slope},
            high=rule.max_temperature,
        )
    )


def _branch_row(profile: Profile, bounds: dict[str, tuple[float, float]]) -> Row:
    rule, temperature, top_k = profile.branch, profile.base.temperature, profile.base.top_k
    return _base_row(profile, Strategy.BRANCH, bounds)._replace(
        temperature=Affine(
            temperature * rule.temperature_offset,
            {"interaction_strength": temperature * rule.temperature_slope},
            high=rule.max_temperature,
        ),
        top_k=Affine(
            top_k * (1 + rule.top_k_slope),
            {"agreement": -top_k * rule.top_k_slope},
            low=rule.min_top_k,
        ),
    )


def _resample_row(profile: Profile, bounds: dict[str, tuple[float, float]]) -> Row:
    rule, temperature, top_p = profile.resample, profile.base.temperature, profile.base.top_p
    return _base_row(profile, Strategy.RESAMPLE, bounds)._replace(
        temperature=Affine(
            temperature * rule.temperature_offset,
            {"attention_varentropy": temperature * rule.temperature_slope},
            low=rule.min_temperature,
        ),
        top_p=Affine(top_p, {"attention_entropy": -rule.top_p_slope}, low=rule.min_top_p),
    )


def _adaptive_row(profile: Profile) -> Row:
    base, rule = profile.base, profile.adaptive
    return Row(
        Strategy.ADAPTIVE,
        {},
        temperature=Affine(
            base.temperature,
            {
                "entropy": base.temperature * rule.temperature_logits,
                "varentropy": base.temperature * rule.temperature_logits,
                "attention_entropy": base.temperature * rule.temperature_attention,
                "attention_varentropy": base.temperature * rule.temperature_attention,
                "agreement": -base.temperature * rule.temperature_agreement,
            },
            low=0.0,
        ),
        top_p=Affine(
            base.top_p,
            {"attention_varentropy": base.top_p * rule.top_p_slope},
            rule.min_top_p,
            rule.max_top_p,
        ),
        top_k=Affine(
            base.top_k + 0.5,  # rounded to the nearest, by rounding down
            {
                "interaction_strength": base.top_k * rule.top_k_interaction,
                "agreement": -base.top_k * rule.top_k_agreement,
            },
            rule.min_top_k,
            rule.max_top_k,
        ),
        min_p=Affine(
            base.min_p,
            {
                "entropy": -base.min_p * rule.min_p_slope,
                "varentropy": -base.min_p * rule.min_p_slope,
            },
            rule.min_min_p,
            rule.max_min_p,
        ),
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
        # Which rows are open, by whether thinking text may be inserted.
        self._open = {
            may_think: mx.array([may_think or row.strategy is not Strategy.THINK for row in rows])
            for may_think in (True, False)
        }

    def __call__(self, measured: Measured, may_think: bool) -> Plan:
        values = mx.stack(list(measured.metrics), axis=-1)[:, None]  # (batch, 1, measurements)
        inside = (values > self._bounds[..., 0]) & (values < self._bounds[..., 1])
        fits = inside.all(axis=-1) & self._open[may_think]
        row = fits.argmax(axis=-1)  # the first that fits; the last one always does
        slopes, constants = self._slopes[row], self._constants[row]
        parameters = constants + (slopes * values).sum(axis=-1)
        parameters = mx.clip(parameters, self._low[row], self._high[row])
        temperature, top_p, top_k, min_p = parameters.T
        return Plan(self._codes[row], temperature, top_p, mx.floor(top_k).astype(mx.int32), min_p)
