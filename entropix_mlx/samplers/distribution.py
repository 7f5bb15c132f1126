"""What a token was drawn from: the model's probabilities, and what each step of the draw took away.

The steps are those of `draw.py`, computed again for one position, on the host, in float64.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np

from ..step import DrawCandidate, DrawDistribution, Strategy
from .base import CODE, STRATEGIES, TOP_K_OFF, Plan
from .metrics import LARGEST_GAP, MIN_TEMPERATURE, SMALLEST, numbers
from .position import Sampled

Array = np.ndarray[Any, np.dtype[Any]]
CONSTRAINT, MIN_P, TOP_K, TOP_P, ARGMAX = "constraint", "min-p", "top-k", "top-p", "argmax"


def distribution(
    sampled: Sampled,
    row: int,
    plan: Plan,
    count: int,
    also: int | None = None,
    mask: mx.array | None = None,
) -> DrawDistribution:
    """Return the most probable tokens of a row, and one more, as the model and the draw saw them.

    Args:
        sampled: a position.
        row: which of its rows.
        plan: the strategy and parameters that it is drawn with.
        also: a token to be listed wherever it ranks.
        mask: `(words,)` uint32, the bits of the tokens that a constraint allows.
    """
    model_gaps, gaps = (
        np.array(numbers(array[row]), np.float64) for array in (sampled.gaps, sampled.drawn_from)
    )
    if mask is not None:
        bits = np.unpackbits(np.array(mask).view(np.uint8), bitorder="little")[: len(gaps)]
        gaps = np.where(bits, gaps - gaps[bits > 0].min(), LARGEST_GAP)
    parameters = [float(numbers(field)[0]) for field in plan.parameters]
    strategy, temperature = STRATEGIES[int(parameters[0])], max(parameters[1], MIN_TEMPERATURE)
    weights = np.exp2(-gaps / temperature)
    order = np.argsort(gaps, kind="stable")
    removed = _removed(sampled, parameters, weights, order)
    constrained = (gaps >= LARGEST_GAP) & (model_gaps < LARGEST_GAP)
    removed[constrained & (order[0] != np.arange(len(gaps)))] = CONSTRAINT
    several = strategy is Strategy.ADAPTIVE and sampled.drawing.needs_order
    survivors = np.where(removed == "", weights, 0.0)
    drawn = _best_of(survivors, order, sampled.drawing.draws if several else 1)
    model, adjusted = (np.exp2(-each) / np.exp2(-each).sum() for each in (model_gaps, gaps))
    tempered = weights / weights.sum()
    listed = list(np.argsort(model_gaps, kind="stable")[:count])
    listed += [also] if also is not None and also not in listed else []
    return DrawDistribution(
        tuple(
            DrawCandidate(
                int(token),
                float(model[token]),
                float(adjusted[token]),
                float(tempered[token]),
                float(drawn[token]),
                str(removed[token]),
            )
            for token in listed
        ),
        {
            step: float(tempered[removed == step].sum())
            for step in (CONSTRAINT, ARGMAX, MIN_P, TOP_K, TOP_P)
            if (removed == step).any()
        },
    )


def _removed(sampled: Sampled, parameters: list[float], weights: Array, order: Array) -> Array:
    """Return for each token the filter that took it away, empty where none did."""
    drawing = sampled.drawing
    strategy, _, top_p, top_k, min_p = parameters
    ranks, before = np.empty(len(order), int), np.empty(len(order))
    ranks[order] = np.arange(len(order))
    before[order] = np.cumsum(weights[order]) - weights[order]
    takes_best = drawing.draws == 0 or (drawing.needs_order and strategy <= CODE[drawing.surest])
    limited = drawing.max_top_k is not None and top_k > TOP_K_OFF
    removed = np.full(len(order), "", dtype=object)
    for step, beyond in (
        (TOP_P, drawing.needs_order & (before >= top_p * weights.sum())),
        (TOP_K, limited & (ranks >= int(top_k))),
        (MIN_P, weights < max(min_p, SMALLEST if drawing.needs_order else 0.0)),
        (ARGMAX, takes_best & (ranks > 0)),
    ):
        removed[beyond & (ranks > 0)] = step  # of several, the first one in order of the draw
    return removed


def plan_of(strategy: Strategy, *parameters: float) -> Plan:
    """Return the plan of one row: a strategy, temperature, top-p, top-k and min-p."""
    return Plan(*(mx.array([float(value)]) for value in (CODE[strategy], *parameters)))


def _best_of(weights: Array, order: Array, draws: int) -> Array:
    """Return the probabilities of the best-ranked of several draws: S(i−1)ⁿ − S(i)ⁿ, with S(i) the
    share of the tokens ranked after i."""
    shares = weights[order] / weights.sum()
    after = np.clip(1 - np.cumsum(shares), 0.0, 1.0) ** draws
    probabilities = np.empty(weights.shape)
    probabilities[order] = np.concatenate([[1.0], after[:-1]]) - after
    return np.where(weights > 0, probabilities, 0.0)
