"""Adaptive-p: prefer tokens whose probability is near a target that the text moves.

By MrJackSpade (github.com/MrJackSpade/adaptive-p-docs); constants as in llama.cpp, pull request
17927. With p the prediction at temperature 1 and a mean p̄ of the probabilities of the text's
tokens, in which a token that lies n back has the weight decayⁿ:

1. The target of a position is t = min(1, max(0, 2 · target − p̄)); at the beginning, p̄ = target.
2. With d = |p − t| / 0.3, a token's logit becomes 5 − 10 d² / (1 + d).

min-p comes first: it says which tokens may be drawn at all. (llama.cpp renormalises p after it;
here p stays the model's own, so that a token that was inserted counts like any other. Without
min-p both are the same.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import mlx.core as mx

from ..profiles.profile import Profile
from ..step import Strategy
from .base import Planned, Sampler, State, TextStart, constant_plan
from .metrics.logits import LARGEST_GAP, LOG2_E, Measured

WIDTH = 0.3
SHARPNESS = 10.0


def build(name: str, profile: Profile, given: Mapping[str, float]) -> Sampler:
    options = profile.samplers[name]
    min_p = given.get("min_p", profile.baselines.min_p)
    return Sampler(
        name=name,
        profile=profile,
        rule=_plan,
        numbers=(mx.array(float(options["target"])), mx.array(float(min_p))),
        memory=AdaptiveP(options["target"], options["decay"]),
    )


@dataclass(frozen=True)
class AdaptiveP:
    """The sum of weighted probabilities and that of the weights, `(rows,)` each."""

    target: float
    decay: float

    def start(self, text: TextStart) -> State:
        weight = 1.0 / (1.0 - self.decay)
        return mx.array([self.target * weight]), mx.array([weight])

    def observe(self, state: State, tokens: mx.array, logprobs: mx.array) -> State:
        total, weight = state
        return mx.exp(logprobs) + self.decay * total, 1.0 + self.decay * weight


def _plan(measured: Measured, numbers: tuple[mx.array, mx.array], state: State) -> Planned:
    target, min_p = numbers
    total, weight = state
    gaps, top_surprise, _ = measured.odds
    wanted = mx.clip(2.0 * target - total / weight, 0.0, 1.0)[:, None]
    distance = mx.abs(mx.power(0.5, gaps + top_surprise) - wanted) / WIDTH
    loss = SHARPNESS * mx.square(distance) / (1.0 + distance) * LOG2_E
    allowed = mx.power(0.5, gaps) >= min_p
    loss = mx.where(allowed, loss, LARGEST_GAP)
    plan = constant_plan(measured, Strategy.SAMPLE)
    return Planned(plan, gaps=loss - loss.min(axis=-1, keepdims=True))
