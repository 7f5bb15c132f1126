"""The Dirichlet sampler ("dslider") as it was meant, with its known mistakes mended.

See docs/sampler.md for the formula and the mistakes; no evidence was published that it helps.

At a position, from the plan down:

1. The target of the entropy is the mean of two running means, and `temperature_of_entropy` finds
   the temperature at which the most probable tokens have it.
2. `dirichlet_fit` finds the Dirichlet distribution of the usual prediction for these tokens.
3. What is drawn from is a mixture: the less the position differs from what is usual, the more the
   usual counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from ..profiles.profile import Profile
from ..step import Strategy
from .base import Planned, Sampler, State, TextStart, constant_plan
from .metrics.logits import LARGEST_GAP, LN_2, Candidates, Measured, Odds, most_probable

SUPPORT = 16  # the most probable tokens, from which is drawn
FLOOR = math.log(1e-8)  # nats: a smaller log probability counts as this one
SMALLEST_DIVERGENCE = 1e-6
LOWEST_TEMPERATURE, HIGHEST_TEMPERATURE = 0.01, 10_000.0
"""Where no temperature between these gives the entropy, the nearer of them is taken."""
LOWEST_SUM, HIGHEST_SUM = -20.0, math.log(1e4)
"""Of ψ(Σ α): the sum of the αs lies between about 0.05 and 10,000."""
SEARCHES = 3  # rounds of `_crossing`: 64³ parts of an interval of temperatures are 0.006 % each
SHIFT = 6
"""ψ and its slope ψ′ are computed this far to the right, where a few terms of a series suffice."""
EULER = 0.5772156649015329
NEWTON_STEPS = 5
SMALLEST = 1e-6
_OPTIONS = ("argmax_ratio", "mixing", "rate")


def build(name: str, profile: Profile, given: Mapping[str, float]) -> Sampler:
    options = profile.samplers[name]
    return Sampler(
        name=name,
        profile=profile,
        rule=_plan,
        numbers=mx.array([float(options[key]) for key in _OPTIONS]),
        memory=RunningMeans(options["rate"]),
    )


@dataclass(frozen=True)
class RunningMeans:
    """Means over the positions and tokens of a text.

    A state is the mean surprise of the tokens in nats and their number, the mean entropy in nats
    and the number of positions, `(rows,)` each; then the mean log probability in nats and the mean
    probability of every token of the vocabulary, `(rows, vocab)` each.
    """

    rate: float  # the weight of the newest value in a mean

    def start(self, text: TextStart) -> State:
        number, each = mx.zeros((1,)), mx.zeros((1, text.vocab))
        return number, number, number, number, each, each

    def observe(self, state: State, tokens: mx.array, logprobs: mx.array) -> State:
        surprise, seen, *others = state
        return _mean(surprise, seen, -logprobs, self.rate), seen + 1, *others


def _mean(mean: mx.array, count: mx.array, value: mx.array, rate: mx.array | float) -> mx.array:
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
    observed = (
        surprise,
        seen,
        _mean(mean_entropy, positions, here, rate),
        positions + 1,
        _mean(mean_logs, positions[:, None], logs, rate),
        _mean(mean_probabilities, positions[:, None], probabilities, rate),
    )
    plan = constant_plan(measured, Strategy.SAMPLE, mx.where(certain, 0.0, 1.0))
    return Planned(plan, gaps, observed)


def _expected(mean_logs: mx.array, mean_probabilities: mx.array) -> mx.array:
    """Return the mean of the Dirichlet distribution that fits a support: `(rows, support)`."""
    total = mean_probabilities.sum(axis=-1, keepdims=True)
    alphas = dirichlet_fit(mean_logs - mx.log(total))
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


def temperature_of_entropy(gaps: mx.array, target: mx.array) -> mx.array:
    """Return the temperatures `(rows,)` at which gaps `(rows, n)` have target entropies `(rows,)`.

    The entropy, in nats and over the n tokens, never falls while the temperature rises.
    """

    def too_low(tried: mx.array) -> mx.array:
        entropies = _entropy(gaps[:, None, :] / mx.exp(tried)[:, :, None])
        return entropies < target[:, None]

    lowest = float(np.log(LOWEST_TEMPERATURE))
    width = float(np.log(HIGHEST_TEMPERATURE / LOWEST_TEMPERATURE))
    return mx.exp(_crossing(too_low, target.shape, lowest, width, parts=64))


def _entropy(gaps: mx.array) -> mx.array:
    weights = mx.power(0.5, gaps)
    total = weights.sum(axis=-1)
    return mx.log(total) + (weights * gaps).sum(axis=-1) / total * LN_2


def dirichlet_fit(mean_logs: mx.array) -> mx.array:
    """Return the parameters α `(rows, n)` that fit mean log probabilities `(rows, n)` best.

    At the maximum of the likelihood, ψ(αᵢ) − ψ(Σ α) = mean log pᵢ for each i (Minka, *Estimating a
    Dirichlet distribution*, 2000). With s = ψ(Σ α), each αᵢ is ψ⁻¹(s + mean log pᵢ), so one number
    is sought: ψ(Σ αᵢ(s)) − s is positive for small s and changes its sign once, where the fit is.

    If the means hardly vary from one another's normalisation (Σ exp(mean log p) is almost 1, as
    where a single distribution was seen), α grows without limit: its sum ends at `HIGHEST_SUM`.
    """

    def too_low(tried: mx.array) -> mx.array:
        alphas = inverse_digamma(tried[:, :, None] + mean_logs[:, None, :])
        return digamma(alphas.sum(axis=-1)) > tried

    width = HIGHEST_SUM - LOWEST_SUM
    found = _crossing(too_low, mean_logs.shape[:1], LOWEST_SUM, width, parts=48)
    return inverse_digamma(found[:, None] + mean_logs)


def _crossing(
    too_low: Callable[[mx.array], mx.array],
    rows: tuple[int, ...],
    lowest: float,
    width: float,
    parts: int,
) -> mx.array:
    """Return the numbers `(rows,)` of an interval that are no longer too low.

    `too_low` gets `(rows, parts)` numbers in rising order; in a row it is true up to one of them.

    1. The ends of all parts of the interval are tried at once.
    2. As many of them as are too low lie before the number that is sought, so it is in the part
       that follows them; that part is divided again.
    """
    low, step = mx.full(rows, lowest), mx.full(rows, width / parts)
    inside = mx.arange(1, parts + 1).astype(mx.float32)
    for _ in range(SEARCHES):
        before = too_low(low[:, None] + step[:, None] * inside).astype(mx.float32)
        count = mx.cumprod(before, axis=-1).sum(axis=-1)
        low = low + step * mx.minimum(count, parts - 1.0)
        step = step / parts
    return low + step * parts / 2


def digamma(x: mx.array) -> mx.array:
    return _with_slope(x)[0]


def inverse_digamma(values: mx.array) -> mx.array:
    """Return the positive numbers whose ψ is given, by Newton's method from Minka's start."""
    near_pole = -1.0 / (mx.minimum(values, -2.0) + EULER)
    x = mx.where(values >= -2.22, mx.exp(values) + 0.5, near_pole)
    for _ in range(NEWTON_STEPS):
        value, slope = _with_slope(x)
        x = mx.maximum(x - (value - values) / slope, SMALLEST)
    return x


def _with_slope(x: mx.array) -> tuple[mx.array, mx.array]:
    """Return ψ(x) and ψ′(x) of positive numbers.

    ψ(x) = ψ(x + 6) − Σ 1 / (x + n) over n from 0 to 5, and ψ′(x) = ψ′(x + 6) + Σ 1 / (x + n)².
    """
    below = 1.0 / (x[..., None] + mx.arange(SHIFT))
    y = 1.0 / (x + SHIFT)
    squared = y * y
    value = -mx.log(y) - y / 2 - squared * (1 / 12 - squared * (1 / 120 - squared / 252))
    slope = y * (1 + y / 2 + squared * (1 / 6 - squared * (1 / 30 - squared / 42)))
    return value - below.sum(axis=-1), slope + mx.square(below).sum(axis=-1)
