"""Decision margin: how small a change of logits and attention scores changes what is decided.

Two runs of the same seed may first differ only where the margin is within what rounding can move.
The margin of a position is searched for by the product's own arithmetic: all logits and scores are
moved up or down at random by ever larger changes, until the strategy or the token differs. A change
of a hundredth of such a size that did cross a border, as rounding does, lies so near to it that
about every other of the random changes crosses it as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from entropix_mlx.profiles.sections import BranchStrategy
from entropix_mlx.samplers.base import Sampler
from entropix_mlx.samplers.draw import uniforms
from entropix_mlx.samplers.metrics import measure_attention
from entropix_mlx.samplers.position import sample
from entropix_mlx.step import ChosenBy, Fork

CHANGES = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
"""Nats."""
TRIES = 64
"""Random changes of each size."""
STEEPEST = 16
"""No comparison of branches moves faster than this with the logits: a lead by at most 4 (each of
two log probabilities by 2), its standard error by less than 12 where the margin is one error."""


def decision_margin(
    sampler: Sampler, logits: Any, scores: Sequence[Any], seed: int, position: int
) -> float:
    """Return the smallest of `CHANGES` that changes a position's strategy or token.

    Args:
        sampler: one without a memory; of others nothing is known: 0.
        logits: `(vocab,)` numbers.
        scores: of each measured layer, the attention scores `(heads, keys)`.
        seed: of the run.
        position: in the text.

    Returns:
        Nats; infinity if none of them does. Where a sampler forks, this is about the token that is
        drawn if it does not; about the winner of a fork, see `fork_margin`.
    """
    if sampler.penalties is not None:
        return 0.0
    source = np.random.default_rng(position)
    randomness = mx.array([uniforms(seed, position, sampler.draws)])

    def moved(values: Any, change: float) -> mx.array:
        rows = np.repeat(np.asarray(values, dtype=np.float32)[None], TRIES + 1, axis=0)
        rows[1:] += change * source.choice([-1.0, 1.0], size=rows[1:].shape)
        return mx.array(rows)

    for change in CHANGES:
        layers = [moved(layer, change) for layer in scores]
        attention = measure_attention(layers)
        rows = sample(sampler, moved(logits, change), attention, randomness).read()
        if len({(row.strategy, row.token) for row in rows}) > 1:
            return change
    return math.inf


def fork_margin(fork: Fork, rule: BranchStrategy) -> float:
    """Return a lower bound on the change of logits, in nats, that could change a fork.

    A fork changes where a lead crosses the margin, or where two leads change their order. The
    branches' tokens are taken as they are.
    """
    if fork.chosen_by is not ChosenBy.SCORE or len(fork.branches) < 2:
        return math.inf
    others = fork.branches[1:]
    borders = [abs((b.lead or 0.0) - rule.margin * (b.error or 0.0)) for b in others]
    if fork.winner:
        best = fork.branches[fork.winner].lead or 0.0
        rivals = [b for n, b in enumerate(others, 1) if n != fork.winner]
        borders += [best - (rival.lead or 0.0) for rival in rivals]
    return min(borders) / STEEPEST
