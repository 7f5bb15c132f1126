"""Samplers to compare entropix with: greedy, a temperature and filters, forks by entropy, XTC.

A rule that puts a floor under a token's logit or probability is a floor under p / max p, which is
what min-p is, so `top_n_sigma` and `p_less` are a min-p that follows the distribution.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import mlx.core as mx

from ..profiles.profile import Profile
from ..step import Strategy
from .base import TOP_K_OFF, Drawing, Plan, Rule, Sampler, constant_plan
from .metrics import LARGEST_GAP, MIN_TEMPERATURE, Measured, relative_probability

Adjust = Callable[[Plan, Measured, Mapping[str, Any]], Plan]
"""Changes a plan of fixed parameters by what was measured and the sampler's options, as arrays."""


def build(
    name: str, profile: Profile, given: Mapping[str, float], adjust: Adjust | None = None
) -> Sampler:
    """Build a sampler that draws with fixed parameters, adjusted to the distribution.

    Args:
        name: the sampler's.
        profile: the defaults in ``[baselines]``, and the options that `adjust` gets.
        given: parameters that replace or join the defaults.
        adjust: what makes a position's plan of them; that of `name` in `ADJUSTMENTS` by default.
    """
    if name == "greedy":
        return Sampler(name=name, profile=profile, rule=_plan_greedy, drawing=Drawing(draws=0))
    defaults = profile.baselines
    own = {name: getattr(defaults, name)} if name in ("top_p", "min_p") else {}
    fixed: dict[str, Any] = {"temperature": defaults.temperature, **own, **given}
    top_k = int(fixed.get("top_k", TOP_K_OFF))
    options = profile.samplers.model_dump().get(name, {})
    chance = name == "xtc"
    return Sampler(
        name=name,
        profile=profile,
        rule=_rule(adjust or ADJUSTMENTS[name]),
        numbers=(_arrays(fixed), _arrays(options)),
        drawing=Drawing(
            max_top_k=top_k or None,
            needs_order=top_k != TOP_K_OFF or fixed.get("top_p", 1.0) < 1.0,
            draws=2 if chance else 1,
            takes_chance=chance,
        ),
    )


def _arrays(numbers: Mapping[str, Any]) -> dict[str, mx.array]:
    return {name: mx.array(value, dtype=mx.float32) for name, value in numbers.items()}


@cache
def _rule(adjust: Adjust) -> Rule:
    """Return the rule of an adjustment, the same object for every profile."""

    def rule(measured: Measured, numbers: tuple[dict[str, mx.array], dict[str, mx.array]]) -> Plan:
        fixed, options = numbers
        return adjust(constant_plan(measured, Strategy.SAMPLE, **fixed), measured, options)

    return rule


def _plan_greedy(measured: Measured, numbers: tuple[()]) -> Plan:
    return constant_plan(measured, Strategy.ARGMAX)


def _fixed(plan: Plan, measured: Measured, options: Mapping[str, Any]) -> Plan:
    return plan


def _top_n_sigma(plan: Plan, measured: Measured, options: Mapping[str, Any]) -> Plan:
    """Keep logits ≥ max − n σ (arXiv 2411.07641)."""
    # A standard deviation does not depend on where the logits are measured from.
    limit = options["n_sigma"] * mx.std(measured.drawn_from, axis=-1)
    floor = mx.power(2.0, -limit / mx.maximum(plan.temperature, MIN_TEMPERATURE))
    return plan._replace(min_p=mx.maximum(plan.min_p, floor))


def _p_less(plan: Plan, measured: Measured, options: Mapping[str, Any]) -> Plan:
    """Keep p ≥ Σ p² of the tempered distribution (arXiv 2509.23234)."""
    weights = relative_probability(measured.drawn_from, plan.temperature)
    floor = mx.square(weights).sum(axis=-1) / weights.sum(axis=-1)
    # Where all probabilities are equal the floor is 1, and rounding must not lift it above them.
    return plan._replace(min_p=mx.maximum(plan.min_p, mx.minimum(floor, 1.0)))


def _xtc(plan: Plan, measured: Measured, options: Mapping[str, Any]) -> Plan:
    """Exclude top choices (text-generation-webui, pull request 6335; llama.cpp has it, too).

    At a share of positions, all tokens of at least `threshold` but the least probable of them
    cannot be drawn, by p at temperature 1. Temperature and filters then act on what is left.
    """
    gaps = measured.drawn_from
    weights = mx.power(0.5, gaps)
    above = weights >= options["threshold"] * weights.sum(axis=-1, keepdims=True)
    least = mx.where(above, gaps, 0.0).max(axis=-1, keepdims=True)
    chance = mx.zeros((1,)) if measured.chance is None else measured.chance
    excluded = above & (gaps < least) & (chance < options["probability"])[:, None]
    left = mx.where(excluded, LARGEST_GAP, gaps)
    return plan._replace(drawn_from=left - left.min(axis=-1, keepdims=True))


ADJUSTMENTS: dict[str, Adjust] = {
    "temperature": _fixed,
    "top_p": _fixed,
    "min_p": _fixed,
    "top_n_sigma": _top_n_sigma,
    "p_less": _p_less,
    "xtc": _xtc,
}
"""The baselines that draw, and how each adjusts its plan to the distribution."""
