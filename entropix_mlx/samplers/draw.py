"""Drawing a token from a plan: temperature, then min-p, top-k and top-p, then one exact draw.

1. Temperature: each token's weight is its probability relative to the highest, to the power 1 / T.
2. Filters: each keeps the tokens before some rank. min-p keeps weights of at least a share
   of the highest, top-k the first k, top-p the tokens before which less than its share of the whole
   vocabulary's weight has been summed up. The first token survives every filter.
3. Draw: with C the running sum of the surviving weights and u a uniform number in [0, 1), the
   token is the first one with C > u · total. (Gumbel noise would need a random number a token.)

Only a top-k or top-p needs tokens in order. Then the best `max_top_k` are sorted, and the weights
of all others only summed, for top-p's total.

The uniforms come from a hash of (seed, position, draw), computed on the host, so that a position's
draw never depends on what was queued, rolled back or batched before it.
"""

from __future__ import annotations

import hashlib
import math
import struct

import mlx.core as mx
import numpy as np

from ..step import Strategy
from .base import CODE, Drawing, Plan
from .metrics import (
    FORBIDDEN_GAP,
    LN_2,
    MIN_TEMPERATURE,
    Measured,
    most_probable,
    numbers,
    relative_probability,
)

DRAW_BLOCK = 256  # tokens in a block of the vocabulary, for drawing from all of it
FILTERED_OUT = 1e6  # taken from the log probability of a token that a filter removed


def uniforms(seed: int, position: int, draws: int) -> list[list[float]]:
    """Return two uniforms in [0, 1) for each draw, a function of the arguments alone; the last pair
    begins with the lowest first one of all.

    They have 24 bits, what a float32 below 1 can hold exactly.
    """
    hashes = (struct.unpack("<II", _hash(seed, position, draw)) for draw in range(draws))
    pairs = [[(number >> 8) / 2**24 for number in pair] for pair in hashes]
    if pairs:
        pairs[-1][0] = min(first for first, _ in pairs)
    return pairs


def _hash(seed: int, position: int, draw: int | str) -> bytes:
    return hashlib.blake2b(f"{seed}:{position}:{draw}".encode(), digest_size=8).digest()


def ranks_needed(drawing: Drawing, vocab: int) -> int:
    """Return how many of the most probable tokens `draw` needs in order; 0 if it needs none."""
    if not drawing.needs_order:
        return 0
    return drawing.max_top_k or vocab


def draw(
    measured: Measured, plan: Plan, drawing: Drawing, randomness: mx.array
) -> tuple[mx.array, mx.array]:
    """Choose a token for each row, with randomness `(rows or 1, draws, 2)` from `uniforms`.

    Returns the tokens and their natural log probabilities at temperature 1, `(rows, 1)` each.
    """
    if drawing.draws == 0:
        token = measured.drawn_from.argmin(axis=-1, keepdims=True)
        if measured.drawn_from is measured.gaps:
            return token, measured.top_surprise * -LN_2
    elif drawing.needs_order:
        token = _draw_ranked(measured, plan, drawing, randomness[..., 0])
    else:
        token = _draw_unranked(measured.drawn_from, plan, randomness[:, :1])
    return token, measured.logprob(token)


def draw_distinct(
    gaps: mx.array, plan: Plan, drawing: Drawing, count: int, seed: int, position: int
) -> list[int]:
    """Return the most probable token of one row of gaps, then others drawn without replacement: as
    many as are asked for, unless a constraint allows fewer.

    They are drawn by adding Gumbel noise to the log probabilities and taking the highest sums
    (Kool et al., arXiv 1903.06059). Tokens that the plan filters out come only after all others.
    """
    if drawing.needs_order:
        needed = max(count, ranks_needed(drawing, gaps.shape[-1]))
        candidates, near = most_probable(gaps, needed)
        _, survives = _filtered(gaps, candidates, plan, drawing)
    else:
        candidates, near = mx.broadcast_to(mx.arange(gaps.shape[-1]), gaps.shape), gaps
        survives = relative_probability(gaps, plan.temperature) >= plan.min_p[:, None]
    temperature = mx.maximum(plan.temperature, MIN_TEMPERATURE)[:, None]
    key = mx.random.key(int.from_bytes(_hash(seed, position, "distinct")))
    noisy = mx.random.gumbel(gaps.shape[:1] + survives.shape[1:], key=key) - (
        near * LN_2 / temperature
    )
    noisy = mx.where(survives, noisy, noisy - FILTERED_OUT)
    noisy = mx.where(near == 0, math.inf, noisy)
    best, _ = most_probable(-noisy, count)
    tokens = mx.take_along_axis(candidates, best, axis=-1)
    gaps = mx.take_along_axis(near, best, axis=-1)
    drawn = zip(numbers(tokens)[0], numbers(gaps)[0], strict=True)
    return [token for token, gap in drawn if gap < FORBIDDEN_GAP]


def _filtered(
    gaps: mx.array, ranked: mx.array, plan: Plan, drawing: Drawing
) -> tuple[mx.array, mx.array]:
    """Return the running sum of the ranked tokens' weights, and which survive the filters of a
    plan.

    1. Weights fall, so each filter removes everything from some rank on, in whatever order.
    2. Top-p's total is that of the whole vocabulary, ranked or not: a share is one of all tokens.
    3. The sum before the first token is exactly 0, so it survives any top-p.
    """
    tempered = relative_probability(gaps, plan.temperature)
    weights = mx.take_along_axis(tempered, ranked, axis=-1)
    total = tempered.sum(axis=-1, keepdims=True)
    cumulative = mx.cumsum(weights, axis=-1)
    count = mx.array(np.arange(1, weights.shape[-1] + 1, dtype=np.float32))
    survives = (weights >= plan.min_p[:, None]) & (
        cumulative - weights < plan.top_p[:, None] * total
    )
    if drawing.max_top_k is not None:
        survives = survives & (count <= plan.top_k[:, None])
    return cumulative, survives


def _draw_ranked(measured: Measured, plan: Plan, drawing: Drawing, uniform: mx.array) -> mx.array:
    """Draw where ranks matter.

    Of several draws the adaptive strategy keeps the one of highest log p + position score, which is
    the same for all tokens of a position: the draw of the smallest uniform is enough. A uniform of
    0 gives the most probable token.
    """
    gaps, ranked = measured.drawn_from, measured.ranked
    if ranked is None or gaps is not measured.gaps:
        ranked = most_probable(gaps, ranks_needed(drawing, gaps.shape[-1]))
    candidates, _ = ranked
    cumulative, survives = _filtered(gaps, candidates, plan, drawing)
    strategy = plan.strategy[:, None]
    uniform = mx.where(strategy == CODE[Strategy.ADAPTIVE], uniform[:, -1:], uniform[:, :1])
    uniform = mx.where(strategy <= CODE[drawing.surest], 0.0, uniform)
    chosen = _invert(cumulative, survives, uniform)
    return mx.take_along_axis(candidates, chosen, axis=-1)


def _draw_unranked(gaps: mx.array, plan: Plan, uniform: mx.array) -> mx.array:
    """Draw where min-p is the only filter: exact over the whole vocabulary, nothing sorted.

    One running sum over 100,000 weights in float32 would round the small ones away: beside a sum of
    1, a weight below 6e-8 adds nothing, and its token could never be drawn. So the first uniform
    draws a block of `DRAW_BLOCK` tokens by the blocks' sums, the second a token inside it.
    """
    weights = relative_probability(gaps, plan.temperature)
    weights = mx.where(weights >= plan.min_p[:, None], weights, 0.0)
    rows, vocab = weights.shape
    padded = mx.pad(weights, [(0, 0), (0, -vocab % DRAW_BLOCK)])
    blocks = padded.reshape(rows, -1, DRAW_BLOCK)
    of_block = blocks.sum(axis=-1)
    block = _invert(mx.cumsum(of_block, axis=-1), of_block > 0, uniform[..., 0])
    inside = mx.take_along_axis(blocks, block[..., None], axis=1)[:, 0]
    token = _invert(mx.cumsum(inside, axis=-1), inside > 0, uniform[..., 1])
    return block * DRAW_BLOCK + token


def _invert(cumulative: mx.array, possible: mx.array, uniform: mx.array) -> mx.array:
    """Return the drawn indices `(rows, 1)`, by inverting a cumulative distribution.

    For weights 3, 2, 1 of which the last is filtered out, and u = 0.7::

        cumulative   3    5    6
        possible     3    5    0        total 5, u · total = 3.5
        above        no   yes  no       the first index above is drawn: 1

    1. Of an index that cannot be drawn (filtered out, or of weight 0), the cumulative weight is
       replaced by 0, so that it is never above u · total, whatever was rounded.
    2. The total is the largest cumulative weight that is left. (A GPU sums in parallel: there the
       last one need not be the largest.)
    3. u is below 1, so u · total is below the total: there always is a first index above it. The
       probability of an index is the step of the cumulative weight, which is its own weight.

    Shapes: `cumulative` and `possible` `(rows, n)`, `uniform` `(rows or 1, 1)`, in [0, 1).
    """
    cumulative = mx.where(possible, cumulative, 0.0)
    total = cumulative.max(axis=-1, keepdims=True)
    return mx.argmax(cumulative > uniform * total, axis=-1, keepdims=True)
