"""The Dirichlet sampler ("dslider") as it was meant, with its known mistakes mended.

See docs/sampler.md for the formula and the mistakes; no evidence was published that it helps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import mlx.core as mx

from ..profiles.profile import Profile
from ..step import Strategy
from .base import Planned, Sampler, constant_plan
from .dirichlet import fitted
from .memory import Beginning, State
from .metrics.logits import (
    LARGEST_GAP,
    LN_2,
    Measured,
    Odds,
)
from .planner import Planner
from .ranking import Candidates, most_probable
from .tempering import temperature_of_entropy

SUPPORT = 16
"""The most probable tokens, from which is drawn."""
FLOOR = math.log(1e-8)
"""Nats: a smaller log probability counts as this one."""
SMALLEST_DIVERGENCE = 1e-6
_OPTIONS = ("argmax_ratio", "mixing", "rate")


def build(name: str, profile: Profile, given: Mapping[str, float]) -> Sampler:
    """Build the sampler; it takes no parameters."""
    options = profile.samplers[name]
    return Sampler(
        name=name,
        profile=profile,
        plan=Planner(_plan, mx.array([float(options[key]) for key in _OPTIONS])),
        memory=RunningMeans(options["rate"]),
    )


@dataclass(frozen=True)
class RunningMeans:
    """Remembers means over the positions and tokens of a text.

    A state is the mean surprise of the tokens in nats and their number, the mean entropy in nats
    and the number of positions, `(rows,)` each; then the mean log probability in nats and the mean
    probability of every token of the vocabulary, `(rows, vocab)` each.
    """

    rate: float
    """The weight of the newest value in a mean."""
    arrays = 6

    def start(self, beginning: Beginning) -> State:
        """Begin without any mean."""
        number, each = mx.zeros((1,)), mx.zeros((1, beginning.vocab))
        return number, number, number, number, each, each

    def observe(self, state: State, tokens: mx.array, logprobs: mx.array) -> State:
        """Add a token's surprise."""
        surprise, seen, *others = state
        return _mean(surprise, seen, -logprobs, self.rate), seen + 1, *others


def _mean(mean: mx.array, count: mx.array, value: mx.array, rate: mx.array | float) -> mx.array:
    """Return a running mean with one more value; the first one is the mean."""
    return mx.where(count > 0, (1.0 - rate) * mean + rate * value, value)


def _plan(measured: Measured, numbers: mx.array, state: State) -> Planned:
    ratio, mixing, rate = mx.split(numbers, 3)
    surprise, seen, mean_entropy, positions, mean_logs, mean_probabilities = state
    here = measured.metrics.entropy * LN_2
    logs = mx.maximum((measured.gaps + measured.top_surprise) * -LN_2, FLOOR)
    probabilities = mx.exp(logs)
    first = positions[:, None] == 0
    before = mx.where(first[:, 0], here, mean_entropy)
    target = (before + mx.where(seen > 0, surprise, before)) / 2
    support = most_probable(measured.odds.gaps, SUPPORT)
    expected = _expected(
        mx.take_along_axis(mx.where(first, logs, mean_logs), support.tokens, axis=-1),
        mx.take_along_axis(
            mx.where(first, probabilities, mean_probabilities), support.tokens, axis=-1
        ),
    )
    certain = here < ratio * before
    gaps = mx.where(
        certain[:, None],
        measured.odds.gaps,
        _mixed(measured.odds, support, target, expected, mixing),
    )
    noted = (
        surprise,
        seen,
        _mean(mean_entropy, positions, here, rate),
        positions + 1,
        _mean(mean_logs, positions[:, None], logs, rate),
        _mean(mean_probabilities, positions[:, None], probabilities, rate),
    )
    plan = constant_plan(measured, Strategy.SAMPLE, mx.where(certain, 0.0, 1.0))
    return Planned(plan, gaps, noted)


def _expected(mean_logs: mx.array, mean_probabilities: mx.array) -> mx.array:
    """Return the mean of the Dirichlet distribution that fits a support: `(rows, support)`."""
    alphas = fitted(mean_logs - mx.log(mean_probabilities.sum(axis=-1, keepdims=True)))
    return alphas / alphas.sum(axis=-1, keepdims=True)


def _mixed(
    odds: Odds, support: Candidates, target: mx.array, expected: mx.array, mixing: mx.array
) -> mx.array:
    """Return the gaps of the tempered distribution over a support, mixed with the expected one."""
    temperature = temperature_of_entropy(support.gaps, target)
    tempered = mx.power(0.5, support.gaps / temperature[:, None])
    tempered = tempered / tempered.sum(axis=-1, keepdims=True)
    logs = mx.log(mx.maximum(tempered, 1e-30)) - mx.log(expected)
    divergence = mx.maximum((tempered * logs).sum(axis=-1, keepdims=True), SMALLEST_DIVERGENCE)
    weight = 1.0 - mx.exp(-mixing / divergence)
    mixture = weight * expected + (1.0 - weight) * tempered
    gaps = mx.log2(mixture.max(axis=-1, keepdims=True) / mx.maximum(mixture, 1e-30))
    return mx.put_along_axis(mx.full(odds.gaps.shape, LARGEST_GAP), support.tokens, gaps, axis=-1)
