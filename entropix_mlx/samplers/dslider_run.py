"""The published Dirichlet sampler ("dslider") as its code effectively behaved.

See docs/sampler.md for the formula; no evidence was published that it helps.
"""

from __future__ import annotations

from collections.abc import Mapping

import mlx.core as mx

from ..profiles.profile import Profile
from ..step import Strategy
from .base import (
    CODE,
    Planned,
    Sampler,
    constant_plan,
)
from .memory import Beginning, State
from .metrics.logits import Measured
from .planner import Planner
from .ranking import most_probable
from .tempering import entropy, temperature_of_entropy

KEPT = 6
"""The most probable tokens, of which all else is computed."""
_OPTIONS = ("argmax_slope", "argmax_offset", "rate")


def build(name: str, profile: Profile, given: Mapping[str, float]) -> Sampler:
    """Build the sampler; it takes no parameters."""
    options = profile.samplers[name]
    return Sampler(
        name=name,
        profile=profile,
        plan=Planner(_plan, mx.array([float(options[key]) for key in _OPTIONS])),
        max_top_k=KEPT,
        needs_order=True,
        memory=RunningEntropy(),
    )


class RunningEntropy:
    """Remembers the running mean of the entropy, and whether there is one: `(rows,)` each."""

    arrays = 2

    def start(self, beginning: Beginning) -> State:
        """Begin without a mean."""
        return mx.zeros((1,)), mx.zeros((1,))

    def observe(self, state: State, tokens: mx.array, logprobs: mx.array) -> State:
        """Return what was noted: it does not depend on the token."""
        return state


def _plan(measured: Measured, numbers: mx.array, state: State) -> Planned:
    slope, offset, rate = mx.split(numbers, 3)
    mean, begun = state
    own = entropy((measured.ranked or most_probable(measured.gaps, KEPT)).gaps[:, :KEPT])
    mean = mx.where(begun > 0, mean, own)
    odds = measured.odds
    drawn = (odds.ranked or most_probable(odds.gaps, KEPT)).gaps[:, :KEPT]
    temperature = temperature_of_entropy(drawn, mean)
    plan = constant_plan(measured, Strategy.SAMPLE, temperature, top_k=KEPT)
    certain = own < slope * mean + offset
    strategy = mx.where(certain, CODE[Strategy.ARGMAX], plan.strategy)
    noted = (rate * own + (1.0 - rate) * mean, mx.ones_like(begun))
    return Planned(plan._replace(strategy=strategy), noted=noted)
