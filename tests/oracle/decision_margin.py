"""Slack: how far a position is from another outcome.

The slack of a position is the smallest change of its logits (in nats) and attention scores that
could change the strategy or the drawn token. Two runs of the same seed may first differ only where
the slack is below what rounding can move.

`slack` returns a lower bound, found by intervals, in float64:

1. Let every logit and every score change by at most ε. Softmax is smooth, so the measurements stay
   within intervals around their values (see `_Reach`), and with them the plan's parameters.
2. Two logits change places only if they differ by at most 2 ε. So the tokens that are certainly and
   possibly better than another one are known, and with them those that certainly and possibly
   survive top-k, top-p and min-p.
3. The drawn token stays if, wherever in these intervals everything lies, uniform · total falls into
   the token's own part of the cumulative distribution.
4. The largest ε for which this can be shown is found by bisection.

The bound is safe rather than tight: the intervals ignore that their quantities move together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from entropix_mlx.profiles.sections import ForkRule
from entropix_mlx.profiles.tree import Affine, table
from entropix_mlx.samplers.base import TOP_K_OFF, Sampler
from entropix_mlx.samplers.draw import DRAW_BLOCK, Drawing, uniforms
from entropix_mlx.samplers.metrics.logits import numbers
from entropix_mlx.samplers.position import measure
from entropix_mlx.step import (
    ChosenBy,
    Fork,
    Metrics,
    Strategy,
)

Array = np.ndarray[Any, np.dtype[np.float64]]

LARGEST = 8.0
"""Nats; no slack above it is told apart."""
STEPS = 24
"""Bisections: after them the bound is known to 5e-7."""
NATS = math.log(2)
"""Nats in a bit."""
FIXED = ("temperature", "top_p", "min_p")
"""The samplers whose plans do not depend on what is measured."""


class Interval(NamedTuple):
    """All numbers from `low` to `high`; of arrays, element by element."""

    low: Any
    high: Any


class _Reach:
    """How far the measurements of a softmax can move.

    Move the logits z along a straight line, none faster than 1. With surprises s = −ln p, entropy H
    and varentropy V in nats, and Cov the covariance under p with the direction d:

    - dH/dt = −Cov(d, s), so |dH/dt| ≤ √V;
    - dV/dt = Cov(d, (s − H)² − 2 (s − H)), so |dV/dt| ≤ 2 V + 2 √V, hence |d√V/dt| ≤ √V + 1.

    So √V + 1 changes by at most the factor e^t, and H by at most (√V + 1) (e^t − 1) − t.
    """

    def __init__(self, logits: Array) -> None:
        p = np.exp(logits - logits.max(axis=-1, keepdims=True))
        p /= p.sum(axis=-1, keepdims=True)
        surprise = -np.log(np.where(p > 0, p, 1.0))
        self.probabilities = p
        self.entropy = (p * surprise).sum(axis=-1)
        self.root = np.sqrt((p * np.square(surprise - self.entropy[..., None])).sum(axis=-1))

    def entropies(self, change: float) -> Interval:
        """Return the entropy in bits."""
        by = (self.root + 1) * math.expm1(change) - change
        return Interval(np.maximum(self.entropy - by, 0) / NATS, (self.entropy + by) / NATS)

    def varentropies(self, change: float) -> Interval:
        """Return the varentropy in bits²."""
        low = np.maximum((self.root + 1) * math.exp(-change) - 1, 0)
        high = (self.root + 1) * math.exp(change) - 1
        return Interval(np.square(low) / NATS**2, np.square(high) / NATS**2)


class _Position:
    """What one position consists of, in float64."""

    def __init__(self, logits: Any, scores: Sequence[Any]) -> None:
        self.logits = np.asarray(logits, dtype=np.float64)
        self.scores = [np.asarray(layer, dtype=np.float64) for layer in scores]
        self._reach = _Reach(self.logits)
        self._attention = [_Reach(layer) for layer in self.scores]

    def metrics(self, change: float) -> Metrics[Interval]:
        """Return the measurements, where nothing changes by more than `change`."""
        best = np.sort(self._reach.probabilities)[::-1][:2]
        margin = best[0] - (best[1] if best.size > 1 else 0.0)
        layers = [
            _attention(reach, scores, change)
            for reach, scores in zip(self._attention, self.scores, strict=True)
        ]
        means = [
            Interval(*(float(np.mean(bounds)) for bounds in zip(*of_layers, strict=True)))
            for of_layers in zip(*layers, strict=True)
        ]
        return Metrics(
            _floats(self._reach.entropies(change)),
            _floats(self._reach.varentropies(change)),
            # Its derivative is the covariance of two variables within [−1, 1].
            Interval(float(margin) - change, float(margin) + change),
            *means,
        )


def _attention(reach: _Reach, scores: Array, change: float) -> list[Interval]:
    """Return the five measurements of one layer `(heads, keys)`."""
    low, high = reach.entropies(change)
    middle, radius = (low + high) / 2, (high - low) / 2
    spread, reach_of = middle.std(), math.sqrt(float(np.mean(np.square(radius))))
    weights = reach.probabilities
    distance = np.abs(weights - weights.mean(axis=0))
    heads, keys = scores.shape
    # Along the line, Σ |dp| = Σ p |d − mean d| ≤ 1 for each head, and so for the mean head.
    divergence = float(distance.sum()) / 2 / heads
    magnitude = float(np.abs(scores).mean())
    return [
        Interval(float(low.mean()), float(high.mean())),
        Interval(max(spread - reach_of, 0) ** 2, (spread + reach_of) ** 2),
        Interval((divergence - change) * 2 / keys, (divergence + change) * 2 / keys),
        Interval(divergence - change, divergence + change),
        Interval(magnitude - change, magnitude + change),
    ]


def _floats(interval: Interval) -> Interval:
    return Interval(float(interval.low), float(interval.high))


class _Plan(NamedTuple):
    strategy: Strategy
    temperature: Interval
    top_p: Interval
    top_k: Interval
    min_p: Interval


def _tree(sampler: Sampler, metrics: Metrics[Interval]) -> _Plan | None:
    """Return what the entropix sampler plans; None if another strategy is possible."""
    for row in table(sampler.profile):
        pairs = [(metrics[name], bounds) for name, bounds in row.bounds.items()]
        if all(low < value.low and value.high < high for value, (low, high) in pairs):
            return _Plan(row.strategy, *(_affine(parameter, metrics) for parameter in row[2:]))
        if not any(value.high <= low or high <= value.low for value, (low, high) in pairs):
            return None
    return None


def _affine(parameter: Affine, metrics: Metrics[Interval]) -> Interval:
    low = high = parameter.constant
    for name, slope in parameter.slopes.items():
        ends = sorted((slope * metrics[name].low, slope * metrics[name].high))
        low, high = low + ends[0], high + ends[1]
    clipped = (min(max(end, parameter.low), parameter.high) for end in (low, high))
    return Interval(*clipped)


def _plan(sampler: Sampler, metrics: Metrics[Interval]) -> _Plan | None:
    """Return what a sampler plans; None if another strategy is possible, or nothing is known."""
    if sampler.adjustment:
        return None
    if sampler.name == "entropix":
        return _tree(sampler, metrics)
    if sampler.name in FIXED:
        return _fixed(sampler)
    one = Interval(1.0, 1.0)
    greedy = _Plan(Strategy.ARGMAX, one, one, one, one)
    if sampler.name == "cntp":
        border = sampler.fork_rule.min_entropy
        value = metrics.entropy
        return greedy if value.high < border or border <= value.low else None
    return greedy if sampler.name == "greedy" else None


def _fixed(sampler: Sampler) -> _Plan:
    """Return a plan that does not depend on what is measured."""
    anywhere = measure(mx.zeros((1, 2)), [mx.zeros((1, 1, 1))])
    values = [numbers(field)[0] for field in sampler.planned(anywhere).plan]
    return _Plan(Strategy.SAMPLE, *(Interval(value, value) for value in values[1:]))


def slack(sampler: Sampler, logits: Any, scores: Sequence[Any], seed: int, position: int) -> float:
    """Return a lower bound on the change that could change a position's strategy or token.

    Args:
        sampler: of the position. For those that follow the distribution in other ways than entropix
            and cntp, or draw from changed logits, nothing is known: 0.
        logits: `(vocab,)` numbers, finite or −∞.
        scores: of each measured layer, the attention scores `(heads, keys)`.
        seed: of the run.
        position: in the text.

    Returns:
        Nats, at most `LARGEST`. Where a sampler branches, this is about the token that is drawn if
        it does not; about the winner of a fork, see `fork_slack`. It does not cover whether a
        thought is kept, which depends on the tokens after it.
    """
    place = _Position(logits, scores)
    pairs = np.array(uniforms(seed, position, sampler.draws), dtype=np.float64).reshape(-1, 2)

    def certain(change: float) -> bool:
        """Tell whether no change up to this one gives another strategy or token."""
        plan = _plan(sampler, place.metrics(change))
        return plan is not None and (_token(place.logits, plan, sampler, pairs, change) is not None)

    low, high = 0.0, LARGEST
    if not certain(0.0):
        return 0.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if certain(middle) else (low, middle)
    return low


def _token(logits: Array, plan: _Plan, sampler: Drawing, pairs: Array, change: float) -> int | None:
    """Return the drawn token if it is certain."""
    if not np.isfinite(logits.max()):
        return None
    best = np.sort(logits)[::-1]
    if plan.strategy is Strategy.ARGMAX:
        certain = best.size == 1 or best[0] - best[1] > 2 * change
        return int(logits.argmax()) if certain else None
    if plan.temperature.low <= 0:
        return None
    if not sampler.needs_order:
        return _unranked(logits, plan, pairs[0], change)
    uniform = pairs[:, 0].min() if plan.strategy is Strategy.ADAPTIVE else pairs[0, 0]
    excludes_top = sampler.excludes_top and plan.strategy is Strategy.RESAMPLE
    return _ranked(logits, plan, float(uniform), excludes_top, change)


def _weights(gaps: Array, temperature: Interval, change: float) -> Interval:
    """Return the tempered probabilities relative to the highest, of gaps in nats."""
    return Interval(
        np.exp(-(gaps + 2 * change) / temperature.low),
        np.exp(-np.maximum(gaps - 2 * change, 0) / temperature.high),
    )


def _ranked(
    logits: Array, plan: _Plan, uniform: float, excludes_top: bool, change: float
) -> int | None:
    """Return the token of a draw over ranks, if it is certain."""
    order = np.argsort(-logits, kind="stable")
    gaps = logits[order[0]] - logits[order]
    weights = _weights(gaps, plan.temperature, change)
    # Of each rank: how many are better for certain, and how many may be, without the token itself.
    surely = np.searchsorted(gaps, gaps - 2 * change, side="left")
    maybe = np.searchsorted(gaps, gaps + 2 * change, side="right") - 1
    sums = [np.concatenate([[0.0], np.cumsum(end)]) for end in weights]
    before = Interval(sums[0][surely], sums[1][maybe + 1] - weights.low)
    top_k = [float("inf") if end == TOP_K_OFF else math.floor(end) for end in plan.top_k]
    top = np.arange(gaps.size) == 0
    certain = (
        (weights.low >= plan.min_p.high)
        & (maybe < top_k[0])
        & (before.high < plan.top_p.low * sums[0][-1])
    )
    possible = (
        (weights.high >= plan.min_p.low)
        & (surely < top_k[1])
        & (before.low < plan.top_p.high * sums[1][-1])
    ) | top
    if gaps.size == 1 or gaps[1] > 2 * change:  # the best token survives every filter
        certain |= top
    elif excludes_top:
        return None
    shift = Interval(0.0, 0.0)
    if excludes_top:
        shift = Interval(weights.low[0], weights.high[0])
        certain, possible = certain & ~top, possible & ~top
        if not certain.any():
            return None
    total = Interval(weights.low[certain].sum(), weights.high[possible].sum())
    before = Interval(before.low - shift.high, before.high - shift.low)
    stays = (
        certain
        & (before.high <= uniform * total.low)
        & (uniform * total.high < before.low + weights.low)
    )
    return int(order[stays.argmax()]) if stays.any() else None


def _unranked(logits: Array, plan: _Plan, pair: Array, change: float) -> int | None:
    """Return the token of a draw over blocks of the vocabulary, if it is certain."""
    low, high = _weights(logits.max() - logits, plan.temperature, change)
    low = np.where(low >= plan.min_p.high, low, 0.0)
    high = np.where(high >= plan.min_p.low, high, 0.0)
    padding = (0, -logits.size % DRAW_BLOCK)
    blocks = [np.pad(end, padding).reshape(-1, DRAW_BLOCK) for end in (low, high)]
    block = _inverted(Interval(*(end.sum(axis=1) for end in blocks)), float(pair[0]))
    if block is None:
        return None
    inside = _inverted(Interval(*(end[block] for end in blocks)), float(pair[1]))
    return None if inside is None else block * DRAW_BLOCK + inside


def _inverted(weights: Interval, uniform: float) -> int | None:
    """Return the index that a draw by its cumulative distribution gives, if it is certain."""
    low, high = np.cumsum(weights.low), np.cumsum(weights.high)
    stays = (high - weights.high <= uniform * low[-1]) & (uniform * high[-1] < low)
    return int(stays.argmax()) if stays.any() else None


def fork_slack(fork: Fork, rule: ForkRule) -> float:
    """Return a lower bound on the change of logits that could change a fork.

    The rollouts' tokens are taken as they are: each token's own slack is `slack`'s. With every
    logit changing by at most ε, a log probability changes by at most 2 ε, so a difference d_t and
    the lead by at most 4 ε. The error of a lead is s / √m, and s is the length of a vector in which
    each of n deviations changes by at most 8 ε, divided by √(n − ways): it changes by at most
    8 ε √(n / (n − ways)) / √m. A fork changes where a lead crosses 0 or the margin, where two leads
    change their order, or where a rollout that was dropped is not the one that was behind.

    Args:
        branch: the record.
        rule: the profile's, with the margin.
    """
    if fork.chosen_by is not ChosenBy.SCORE or len(fork.branches) < 2:
        return LARGEST
    first, *others = fork.branches
    lengths = [min(len(first.tokens), len(other.tokens)) for other in others]
    freedom = sum(lengths) - len(lengths)
    found = [
        # How far each lead is from the margin, and how fast the margin moves.
        ((other.lead or 0.0) - rule.margin * (other.error or 0.0), rule.margin / math.sqrt(length))
        for other, length in zip(others, lengths, strict=True)
    ]
    spread = 8 * math.sqrt(sum(lengths) / freedom) if freedom else 0.0
    distances = [abs(beyond) / (4 + spread * speed) for beyond, speed in found]
    best = max((other.lead or 0.0 for other in others), default=0.0)
    if fork.winner:
        rivals = [other.lead or 0.0 for i, other in enumerate(others, 1) if i != fork.winner]
        distances += [abs(best - rival) / 8 for rival in rivals]
    distances += [] if fork.closest is None else [fork.closest / 8]
    return min(LARGEST, *distances)
