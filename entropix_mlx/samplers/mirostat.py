"""Mirostat (Basu et al., arXiv 2007.14966): hold the surprise of the text at a target.

Of the paper's two algorithms this is the second, which is known as version 2. With the surprise
S(x) = −log₂ p(x) in bits, p the model's own prediction at temperature 1:

1. Draw from the tokens with S ≤ μ, or from the most probable one if there is none.
2. Once x has joined the text, μ ← μ − η (S(x) − τ). At the beginning, μ = 2 τ.

(llama.cpp takes S(x) from the probabilities that were renormalised after step 1, the paper from
those of the model, as here.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import mlx.core as mx

from ..profiles.profile import Profile
from ..step import Strategy
from .base import Plan, Sampler, State, TextStart, constant_plan
from .metrics.logits import LN_2, Measured


def build(name: str, profile: Profile, given: Mapping[str, float]) -> Sampler:
    options = profile.samplers[name]
    return Sampler(
        name=name,
        profile=profile,
        rule=_plan,
        memory=Mirostat(options["target_surprise"], options["rate"]),
    )


@dataclass(frozen=True)
class Mirostat:
    """μ, `(rows,)` bits."""

    target: float  # τ, in bits
    rate: float  # η

    def start(self, text: TextStart) -> State:
        return (mx.array([2.0 * self.target]),)

    def observe(self, state: State, tokens: mx.array, logprobs: mx.array) -> State:
        (limit,) = state
        return (limit - self.rate * (logprobs / -LN_2 - self.target),)


def _plan(measured: Measured, numbers: tuple[()], state: State) -> Plan:
    (limit,) = state
    # S is the gap and the top surprise, so S ≤ μ is a floor under p / max p. Any floor of at most 1
    # keeps the most probable token.
    gap = mx.maximum(limit - measured.odds.top_surprise[:, 0], 0.0)
    return constant_plan(measured, Strategy.SAMPLE, min_p=mx.power(0.5, gap))
