"""What a token was drawn from: the model's probabilities, and what each step of the draw took away.

The steps are those of `draw.py`, computed again for one position, on the host, in float64.
"""

from __future__ import annotations

from typing import Any, NamedTuple

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
    model_gaps, gaps, tempered, removed, drawn = _stages(sampled, row, plan, mask)
    adjusted, model = (np.exp2(-g) / np.exp2(-g).sum() for g in (gaps, model_gaps))
    listed = list(np.argsort(model_gaps, kind="stable")[:count])
    listed += [also] if also is not None and also not in listed else []
    return DrawDistribution(
        tuple(
            DrawCandidate(
                int(t),
                float(model[t]),
                float(adjusted[t]),
                float(tempered[t]),
                float(drawn[t]),
                str(removed[t]),
            )
            for t in listed
        ),
        {
            step: float(tempered[removed == step].sum())
            for step in (CONSTRAINT, ARGMAX, MIN_P, TOP_K, TOP_P)
            if (removed == step).any()
        },
    )


class _Stages(NamedTuple):
    """Of one row, a number a token."""

    model_gaps: Array
    gaps: Array
    """Those of the draw."""
    tempered: Array
    removed: Array
    """The step that took a token away; empty where none did."""
    drawn: Array


def _stages(sampled: Sampled, row: int, plan: Plan, mask: mx.array | None = None) -> _Stages:
    drawing = sampled.drawing
    model_gaps, gaps = _row(sampled.gaps[row]), _row(sampled.drawn_from[row])
    if mask is not None:
        bits = np.unpackbits(np.array(mask).view(np.uint8), bitorder="little")[: len(gaps)]
        gaps = np.where(bits, gaps - gaps[bits > 0].min(), LARGEST_GAP)
    parameters = (float(numbers(field)[0]) for field in plan.parameters)
    strategy, temperature, top_p, top_k, min_p = parameters
    chosen = STRATEGIES[int(strategy)]
    weights = np.exp2(-gaps / max(temperature, MIN_TEMPERATURE))
    order = np.argsort(gaps, kind="stable")
    removed = np.full(gaps.shape, "", dtype=object)
    ranks = np.empty(gaps.shape, dtype=int)
    ranks[order] = np.arange(len(order))
    before = np.empty(gaps.shape)
    before[order] = np.cumsum(weights[order]) - weights[order]

    def remove(step: str, beyond: Array) -> None:
        removed[(removed == "") & beyond & (ranks > 0)] = step

    remove(CONSTRAINT, (gaps >= LARGEST_GAP) & (model_gaps < LARGEST_GAP))
    if drawing.draws == 0 or (drawing.needs_order and strategy <= CODE[drawing.surest]):
        remove(ARGMAX, ranks > 0)
    remove(MIN_P, weights < max(min_p, SMALLEST if drawing.needs_order else 0.0))
    if drawing.max_top_k is not None and top_k > TOP_K_OFF:
        remove(TOP_K, ranks >= int(top_k))
    if drawing.needs_order:
        remove(TOP_P, before >= top_p * weights.sum())
    survivors = np.where(removed == "", weights, 0.0)
    draws = drawing.draws if chosen is Strategy.ADAPTIVE and drawing.needs_order else 1
    drawn = _best_of(survivors, order, draws)
    return _Stages(model_gaps, gaps, weights / weights.sum(), removed, drawn)


def plan_of(strategy: Strategy, *parameters: float) -> Plan:
    """Return the plan of one row: a strategy, temperature, top-p, top-k and min-p."""
    return Plan(*(mx.array([float(value)]) for value in (CODE[strategy], *parameters)))


def _row(gaps: Any) -> Array:
    return np.array(numbers(gaps), dtype=np.float64)


def _best_of(weights: Array, order: Array, draws: int) -> Array:
    """Return the probabilities of the best-ranked of several draws: S(i−1)ⁿ − S(i)ⁿ, with S(i) the
    share of the tokens ranked after i."""
    shares = weights[order] / weights.sum()
    after = np.clip(1 - np.cumsum(shares), 0.0, 1.0) ** draws
    probabilities = np.empty(weights.shape)
    probabilities[order] = np.concatenate([[1.0], after[:-1]]) - after
    return np.where(weights > 0, probabilities, 0.0)
