"""The policies to compare entropix with: the same loop and measurements, another choice of tokens.

Each is a temperature and fixed filters; three of them adjust those to the distribution. A rule that
puts a floor under a token's logit or probability is a floor under p / max p, which is what
min-p is, so `top_n_sigma` and `p_less` are a min-p that follows the distribution.
"""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx

from ..profiles.profile import Baselines, Profile
from ..step import Strategy
from .metrics import LN_2, MIN_TEMPERATURE, Measured, relative_probability
from .policy import CODE, TOP_K_OFF, Plan, Policy


def greedy(profile: Profile) -> Policy:
    """Build the policy that takes the most probable token."""

    def plan(measured: Measured) -> Plan:
        return _constant(measured, Strategy.ARGMAX)

    return Policy("greedy", profile, plan, draws=0)


def cntp(profile: Profile, temperature: float | None = None) -> Policy:
    """Build cautious next-token prediction (arXiv 2507.03038).

    Where the entropy calls for two rollouts or more it branches, else it takes the most probable
    token. The temperature is that of drawing the first tokens of the rollouts.
    """
    rule = profile.cntp
    tempered = profile.baselines.temperature if temperature is None else temperature

    def plan(measured: Measured) -> Plan:
        basic = _constant(measured, Strategy.ARGMAX, tempered)
        forks = measured.metrics.entropy >= rule.min_entropy
        return basic._replace(strategy=mx.where(forks, CODE[Strategy.BRANCH], basic.strategy))

    return Policy("cntp", profile, plan, draws=0, rollouts=rule)


def baseline(name: str, profile: Profile, given: dict[str, float]) -> Policy:
    """Build one of `BASELINES`; `given` parameters replace or join its own."""
    defaults = profile.baselines
    own = {name: getattr(defaults, name)} if name in ("top_p", "min_p") else {}
    fixed = {"temperature": defaults.temperature} | own | given
    top_k = int(fixed.get("top_k", TOP_K_OFF))
    adjust = BASELINES[name]

    def plan(measured: Measured) -> Plan:
        basic = _constant(measured, Strategy.SAMPLE, **fixed)
        return adjust(basic, measured, defaults)

    return Policy(
        name,
        profile,
        plan,
        max_top_k=top_k or None,
        needs_order=top_k != TOP_K_OFF or fixed.get("top_p", 1.0) < 1.0,
    )


def _constant(
    measured: Measured,
    strategy: Strategy,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: float = TOP_K_OFF,
    min_p: float = 0.0,
) -> Plan:
    shape = measured.metrics.entropy.shape
    return Plan(
        mx.full(shape, CODE[strategy], dtype=mx.int32),
        mx.full(shape, float(temperature)),
        mx.full(shape, top_p),
        mx.full(shape, top_k, dtype=mx.int32),
        mx.full(shape, min_p),
    )


def _fixed(plan: Plan, measured: Measured, defaults: Baselines) -> Plan:
    return plan


def _top_n_sigma(plan: Plan, measured: Measured, defaults: Baselines) -> Plan:
    """Keep logits ≥ max − n σ (arXiv 2411.07641)."""
    # A standard deviation does not depend on where the logits are measured from.
    limit = defaults.n_sigma * mx.std(measured.gaps, axis=-1)
    floor = mx.power(2.0, -limit / mx.maximum(plan.temperature, MIN_TEMPERATURE))
    return plan._replace(min_p=mx.maximum(plan.min_p, floor))


def _p_less(plan: Plan, measured: Measured, defaults: Baselines) -> Plan:
    """Keep p ≥ Σ p² of the tempered distribution (arXiv 2509.23234)."""
    weights = relative_probability(measured.gaps, plan.temperature)
    floor = mx.square(weights).sum(axis=-1) / weights.sum(axis=-1)
    # Where all probabilities are equal the floor is 1, and rounding must not lift it above them.
    return plan._replace(min_p=mx.maximum(plan.min_p, mx.minimum(floor, 1.0)))


def _adaptive_temperature(plan: Plan, measured: Measured, defaults: Baselines) -> Plan:
    """Sharpen by a polynomial of the entropy in nats (arXiv 2410.01104)."""
    nats = measured.metrics.entropy * LN_2
    value = mx.zeros_like(nats)
    for coefficient in defaults.adaptive_polynomial:
        value = value * nats + coefficient
    sharpening = mx.where(nats > defaults.adaptive_min_entropy, mx.maximum(value, 1.0), 1.0)
    return plan._replace(temperature=plan.temperature / sharpening)


BASELINES: dict[str, Callable[[Plan, Measured, Baselines], Plan]] = {
    "temperature": _fixed,
    "top_p": _fixed,
    "min_p": _fixed,
    "top_n_sigma": _top_n_sigma,
    "p_less": _p_less,
    "adaptive_temperature": _adaptive_temperature,
}
"""The baselines that draw, and how each adjusts its plan to the distribution."""
