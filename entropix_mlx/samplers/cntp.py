"""Cautious next-token prediction (arXiv 2507.03038)."""

from __future__ import annotations

from collections.abc import Mapping

import mlx.core as mx

from ..profiles.profile import Profile
from ..step import Strategy
from .base import (
    CODE,
    Plan,
    Sampler,
    constant_plan,
)
from .metrics.logits import Measured
from .planner import Planner


def build(name: str, profile: Profile, given: Mapping[str, float]) -> Sampler:
    """Build the sampler: rollouts where the entropy calls for two or more, else the best token.

    The temperature is that of drawing the first tokens of the rollouts.
    """
    rule = profile.cntp
    temperature = given.get("temperature", profile.baselines.temperature)
    numbers = (mx.array(float(temperature)), mx.array(rule.min_entropy))
    return Sampler(
        name=name,
        profile=profile,
        plan=Planner(_plan, numbers),
        own_fork_rule=rule,
        draws=0,
    )


def _plan(measured: Measured, numbers: tuple[mx.array, mx.array]) -> Plan:
    temperature, min_entropy = numbers
    basic = constant_plan(measured, Strategy.ARGMAX, temperature)
    forks = measured.metrics.entropy >= min_entropy
    return basic._replace(strategy=mx.where(forks, CODE[Strategy.BRANCH], basic.strategy))
