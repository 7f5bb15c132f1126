"""The entropix decision tree, as a table: one row a strategy, the first that fits wins.

A row states bounds for the metrics, and each sampling parameter as an affine function of them,
clipped: that covers every formula of the published sampler. The numbers come from the profile;
`profiles/reference.toml` states each formula beside its coefficients.

Nothing here imports MLX: `classify` decides again about a recorded step, without a model.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import NamedTuple

from ..step import NOT_OF_THE_MODEL, Metrics, Step, Strategy
from .fields import LARGEST_TOP_K
from .profile import Profile

TREE_SAMPLER = "entropix"
"""The sampler that decides by this table."""


class Affine(NamedTuple):
    """constant + Σ slope · metric, clipped to [low, high]."""

    constant: float
    slopes: dict[str, float] = {}  # noqa: RUF012 - never mutated
    low: float = -inf
    high: float = inf


class TreeRow(NamedTuple):
    """A strategy: when it applies, and the parameters it samples with."""

    strategy: Strategy
    bounds: dict[str, tuple[float, float]]
    """By metric: it must lie above the first number and below the second."""
    temperature: Affine
    top_p: Affine
    top_k: Affine
    """Rounded down to a whole number after clipping."""
    min_p: Affine

    def fits(self, metrics: Metrics[float]) -> bool:
        """Tell whether the metrics lie within the bounds."""
        return all(low < metrics[name] < high for name, (low, high) in self.bounds.items())


def table(profile: Profile) -> list[TreeRow]:
    """Return the decision tree of a profile, in the order of precedence."""
    at = profile.thresholds
    lost = {
        "entropy": (at.think_min_entropy, inf),
        "varentropy": (-inf, at.think_max_varentropy),
    }
    sure = {
        "entropy": (-inf, at.low_entropy),
        "varentropy": (-inf, at.low_varentropy),
    }
    fork = {
        "entropy": (-inf, at.branch_max_entropy),
        "varentropy": (at.branch_min_varentropy, inf),
        "margin": (-inf, at.branch_max_margin),
    }
    chaos = {
        "entropy": (at.resample_min_entropy, inf),
        "varentropy": (at.resample_min_varentropy, inf),
    }
    return [
        _base_row(profile, Strategy.ARGMAX, sure),
        _think_row(profile, lost),
        _branch_row(profile, fork),
        _resample_row(profile, chaos),
        _adaptive_row(profile),
    ]


def _base_row(
    profile: Profile, strategy: Strategy, bounds: dict[str, tuple[float, float]]
) -> TreeRow:
    base = profile.base
    return TreeRow(
        strategy,
        bounds,
        temperature=Affine(base.temperature),
        top_p=Affine(base.top_p),
        top_k=Affine(base.top_k),
        min_p=Affine(base.min_p),
    )


def _think_row(profile: Profile, bounds: dict[str, tuple[float, float]]) -> TreeRow:
    rule, temperature = profile.think, profile.base.temperature
    return _base_row(profile, Strategy.THINK, bounds)._replace(
        temperature=Affine(
            temperature * rule.temperature_offset,
            {"attention_entropy": temperature * rule.temperature_slope},
            high=rule.max_temperature,
        )
    )


def _branch_row(profile: Profile, bounds: dict[str, tuple[float, float]]) -> TreeRow:
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
            high=LARGEST_TOP_K,
        ),
    )


def _resample_row(profile: Profile, bounds: dict[str, tuple[float, float]]) -> TreeRow:
    rule, temperature, top_p = profile.resample, profile.base.temperature, profile.base.top_p
    return _base_row(profile, Strategy.RESAMPLE, bounds)._replace(
        temperature=Affine(
            temperature * rule.temperature_offset,
            {"attention_varentropy": temperature * rule.temperature_slope},
            low=rule.min_temperature,
        ),
        top_p=Affine(top_p, {"attention_entropy": -rule.top_p_slope}, low=rule.min_top_p),
    )


def _adaptive_row(profile: Profile) -> TreeRow:
    base, rule = profile.base, profile.adaptive
    return TreeRow(
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


def classify(steps: Iterable[Step], profile: Profile) -> list[Strategy]:
    """Return the strategies that a profile would have chosen where some steps stand.

    The metrics are those of the text as it is. All tokens of an inserted or retrieved text stay
    `think`; where the text could not be inserted, it still cannot.
    """
    rows = table(profile)
    return [
        Strategy.THINK if step.origin in NOT_OF_THE_MODEL else _decided_again(rows, step)
        for step in steps
    ]


def first_fit(rows: list[TreeRow], metrics: Metrics[float]) -> Strategy:
    """Return the strategy of the first row of a table that fits."""
    return next(row.strategy for row in rows if row.fits(metrics))


def _decided_again(rows: list[TreeRow], step: Step) -> Strategy:
    strategy = first_fit(rows, step.metrics)
    return strategy.sampled() if step.strategy is Strategy.THINK_SAMPLE else strategy
