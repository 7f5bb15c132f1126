"""The entropix decision tree, as a table: one row a strategy, the first that fits wins.

A row states bounds for the metrics, and each sampling parameter as an affine function of them,
clipped: that covers every formula of the published sampler, which `reference.toml` states.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import NamedTuple

from ..step import NOT_OF_THE_MODEL, Metrics, Step, Strategy
from .fields import LARGEST_TOP_K
from .profile import Profile

TREE_SAMPLER = "entropix"  # the sampler that decides by this table


class Affine(NamedTuple):
    """constant + Σ slope · metric, clipped to [low, high]."""

    constant: float
    slopes: dict[str, float] = {}  # noqa: RUF012 - never mutated
    low: float = -inf
    high: float = inf


class TreeRow(NamedTuple):
    """A strategy: when it applies, and the parameters it samples with."""

    strategy: Strategy
    bounds: dict[str, tuple[float, float]]  # a metric lies above the first and below the second
    temperature: Affine
    top_p: Affine
    top_k: Affine  # rounded down to a whole number after clipping
    min_p: Affine

    def fits(self, metrics: Metrics[float]) -> bool:
        return all(low < metrics[name] < high for name, (low, high) in self.bounds.items())


def table(profile: Profile) -> list[TreeRow]:
    """Return the decision tree of a profile, in the order of precedence."""
    at = profile.thresholds
    return [
        _base_row(
            profile,
            Strategy.ARGMAX,
            entropy=(-inf, at.low_entropy),
            varentropy=(-inf, at.low_varentropy),
        ),
        _think_row(profile),
        _branch_row(profile),
        _resample_row(profile),
        _adaptive_row(profile),
    ]


def _base_row(profile: Profile, strategy: Strategy, **bounds: tuple[float, float]) -> TreeRow:
    base = profile.base
    return TreeRow(
        strategy,
        bounds,
        temperature=Affine(base.temperature),
        top_p=Affine(base.top_p),
        top_k=Affine(base.top_k),
        min_p=Affine(base.min_p),
    )


def _think_row(profile: Profile) -> TreeRow:
    at, rule, temperature = profile.thresholds, profile.think, profile.base.temperature
    return _base_row(
        profile,
        Strategy.THINK,
        entropy=(at.think_min_entropy, inf),
        varentropy=(-inf, at.think_max_varentropy),
    )._replace(
        temperature=Affine(
            temperature * rule.temperature_offset,
            {"attention_entropy": temperature * rule.temperature_slope},
            high=rule.max_temperature,
        )
    )


def _branch_row(profile: Profile) -> TreeRow:
    at, rule, base = profile.thresholds, profile.branch, profile.base
    return _base_row(
        profile,
        Strategy.BRANCH,
        entropy=(-inf, at.branch_max_entropy),
        varentropy=(at.branch_min_varentropy, inf),
        margin=(-inf, at.branch_max_margin),
    )._replace(
        temperature=Affine(
            base.temperature * rule.temperature_offset,
            {"interaction_strength": base.temperature * rule.temperature_slope},
            high=rule.max_temperature,
        ),
        top_k=Affine(
            base.top_k * (1 + rule.top_k_slope),
            {"agreement": -base.top_k * rule.top_k_slope},
            low=rule.min_top_k,
            high=LARGEST_TOP_K,
        ),
    )


def _resample_row(profile: Profile) -> TreeRow:
    at, rule, base = profile.thresholds, profile.resample, profile.base
    return _base_row(
        profile,
        Strategy.RESAMPLE,
        entropy=(at.resample_min_entropy, inf),
        varentropy=(at.resample_min_varentropy, inf),
    )._replace(
        temperature=Affine(
            base.temperature * rule.temperature_offset,
            {"attention_varentropy": base.temperature * rule.temperature_slope},
            low=rule.min_temperature,
        ),
        top_p=Affine(base.top_p, {"attention_entropy": -rule.top_p_slope}, low=rule.min_top_p),
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
    """Return the strategies that a profile would have chosen, given the text as it is.

    Inserted and retrieved tokens stay `think`; where no text could be inserted, none can be now.
    """
    rows = table(profile)
    return [
        Strategy.THINK if step.origin in NOT_OF_THE_MODEL else _decided_again(rows, step)
        for step in steps
    ]


def first_fit(rows: list[TreeRow], metrics: Metrics[float]) -> Strategy:
    return next(row.strategy for row in rows if row.fits(metrics))


def _decided_again(rows: list[TreeRow], step: Step) -> Strategy:
    strategy = first_fit(rows, step.metrics)
    return strategy.sampled() if step.strategy is Strategy.THINK_SAMPLE else strategy
