"""The entropix decision tree, as a table: one row a strategy, the first that fits wins.

A row states bounds for the metrics, and each sampling parameter as an affine function of them,
clipped: that covers every formula of the published sampler, which `reference.toml` states.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Any, NamedTuple

from ..step import NOT_OF_THE_MODEL, Metrics, Step, Strategy
from .fields import LARGEST_TOP_K
from .profile import Profile
from .sections import Adaptive, Base, BranchStrategy, Resample, Think

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
    at, base = profile.thresholds, profile.base
    usual = tuple(map(Affine, (base.temperature, base.top_p, base.top_k, base.min_p)))
    certain = {"entropy": (-inf, at.low_entropy), "varentropy": (-inf, at.low_varentropy)}
    lost = {
        "entropy": (at.think_min_entropy, inf),
        "varentropy": (-inf, at.think_max_varentropy),
    }
    forking = {
        "entropy": (-inf, at.branch_max_entropy),
        "varentropy": (at.branch_min_varentropy, inf),
        "margin": (-inf, at.branch_max_margin),
    }
    chaotic = {
        "entropy": (at.resample_min_entropy, inf),
        "varentropy": (at.resample_min_varentropy, inf),
    }
    return [
        TreeRow(Strategy.ARGMAX, certain, *usual),
        TreeRow(Strategy.THINK, lost, *usual)._replace(**_think(profile.think, base)),
        TreeRow(Strategy.BRANCH, forking, *usual)._replace(**_branch(profile.branch, base)),
        TreeRow(Strategy.RESAMPLE, chaotic, *usual)._replace(**_resample(profile.resample, base)),
        TreeRow(Strategy.ADAPTIVE, {}, **_adaptive(profile.adaptive, base)),
    ]


def _times(factor: float, constant: float, slopes: dict[str, float], **clip: float) -> Affine:
    """Return a multiple of constant + Σ slope · metric; the result is clipped."""
    scaled = {name: factor * slope for name, slope in slopes.items()}
    return Affine(factor * constant, scaled, **clip)


def _think(rule: Think, base: Base) -> dict[str, Any]:
    slopes = {"attention_entropy": rule.temperature_slope}
    high = rule.max_temperature
    return {"temperature": _times(base.temperature, rule.temperature_offset, slopes, high=high)}


def _branch(rule: BranchStrategy, base: Base) -> dict[str, Any]:
    slopes = {"interaction_strength": rule.temperature_slope}
    high = rule.max_temperature
    return {
        "temperature": _times(base.temperature, rule.temperature_offset, slopes, high=high),
        "top_k": _times(
            base.top_k,
            1 + rule.top_k_slope,
            {"agreement": -rule.top_k_slope},
            low=rule.min_top_k,
            high=LARGEST_TOP_K,
        ),
    }


def _resample(rule: Resample, base: Base) -> dict[str, Any]:
    slopes = {"attention_varentropy": rule.temperature_slope}
    low = rule.min_temperature
    return {
        "temperature": _times(base.temperature, rule.temperature_offset, slopes, low=low),
        "top_p": Affine(base.top_p, {"attention_entropy": -rule.top_p_slope}, low=rule.min_top_p),
    }


def _adaptive(rule: Adaptive, base: Base) -> dict[str, Any]:
    temperature = {
        "entropy": rule.temperature_logits,
        "varentropy": rule.temperature_logits,
        "attention_entropy": rule.temperature_attention,
        "attention_varentropy": rule.temperature_attention,
        "agreement": -rule.temperature_agreement,
    }
    top_k = {
        "interaction_strength": base.top_k * rule.top_k_interaction,
        "agreement": -base.top_k * rule.top_k_agreement,
    }
    top_p = {"attention_varentropy": rule.top_p_slope}
    min_p = {"entropy": -rule.min_p_slope, "varentropy": -rule.min_p_slope}
    return {
        "temperature": _times(base.temperature, 1, temperature, low=0.0),
        "top_p": _times(base.top_p, 1, top_p, low=rule.min_top_p, high=rule.max_top_p),
        # Half is added because top-k is rounded down.
        "top_k": Affine(base.top_k + 0.5, top_k, rule.min_top_k, rule.max_top_k),
        "min_p": _times(base.min_p, 1, min_p, low=rule.min_min_p, high=rule.max_min_p),
    }


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
