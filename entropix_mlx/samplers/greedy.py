"""Greedy decoding: the most probable token."""

from __future__ import annotations

from collections.abc import Mapping

from ..profiles.profile import Profile
from ..step import Strategy
from .base import Plan, Sampler, constant_plan
from .metrics.logits import Measured
from .planner import Planner


def build(name: str, profile: Profile, given: Mapping[str, float]) -> Sampler:
    """Build the sampler; it takes no parameters."""
    return Sampler(
        name=name,
        profile=profile,
        plan=Planner(_plan, ()),
        draws=0,
    )


def _plan(measured: Measured, numbers: tuple[()]) -> Plan:
    return constant_plan(measured, Strategy.ARGMAX)
