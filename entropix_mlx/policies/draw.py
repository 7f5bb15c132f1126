"""Drawing a token from a plan: temperature, then min-p, top-k and top-p, then one exact draw.

The filters act on the tempered probabilities of the whole vocabulary; what survives is
renormalised and drawn from by inverting its cumulative distribution. The uniforms come from a
hash of (seed, position, draw), computed on the host, so that a position's draw never depends on
what was queued, rolled back or batched before it, and there is no random state to share.

Where a policy ranks tokens, only the best `max_top_k` are sorted; see `most_probable`.
"""

from __future__ import annotations

import hashlib
import math
import struct
from typing import NamedTuple

import mlx.core as mx

from ..step import Strategy
from .metrics import LN_2, MIN_TEMPERATURE, Measured, numbers, relative_probability
from .policy import CODE, TOP_K_OFF, Plan, Policy

BLOCK = 32
"""Tokens in a block of the vocabulary, for finding the best without sorting it all."""
DRAW_BLOCK = 256
"""Tokens in a block of the vocabulary, for drawing from all of it."""
FILTERED_OUT = 1e6
"""Taken from the log probability of a token that a filter removed: it comes after all others."""


class Draw(NamedTuple):
    """A chosen token of each sequence and its natural log probability at temperature 1."""

    token: mx.array
    logprob: mx.array


class Candidates(NamedTuple):
    """The most probable tokens of each sequence, best first: `(batch, count)` each."""

    tokens: mx.array
    gaps: mx.array


def uniforms(seed: int, position: int, draws: int) -> list[list[float]]:
    """Return two uniforms in [0, 1) for each draw, a function of the arguments alone.

    They have 24 bits, what a float32 below 1 can hold exactly.
    """
    pairs = []
    for draw in range(draws):
        first, second = struct.unpack("<II", _hash(seed, position, draw))
        pairs.append([(first >> 8) / 2**24, (second >> 8) / 2**24])
    return pairs


def _hash(seed: int, position: int, draw: int | str) -> bytes:
    return hashlib.blake2b(f"{seed}:{position}:{draw}".encode(), digest_size=8).digest()


def draw(measured: Measured, plan: Plan, policy: Policy, randomness: mx.array) -> Draw:
    """Choose a token for each sequence.

    Args:
        measured: the position's distribution, from `metrics.measure`.
        plan: what the policy asks for at this position.
        policy: what its plans may ask for: how many tokens to rank, how many to draw.
        randomness: `(batch or 1, draws, 2)`, from `uniforms`.
    """
    if policy.draws == 0:
        token = measured.gaps.argmin(axis=-1)
    elif policy.needs_order:
        token = _draw_ranked(measured.gaps, plan, policy, randomness[..., 0])
    else:
        token = _draw_unranked(measured.gaps, plan, randomness[:, :1])
    return Draw(token, logprob(measured, token[:, None])[:, 0])


def draw_distinct(
    measured: Measured, plan: Plan, policy: Policy, count: int, seed: int, position: int
) -> list[int]:
    """Return the most probable token of a sequence, then others drawn without replacement.

    They are drawn by adding Gumbel noise to the log probabilities and taking the highest sums
    (Kool et al., arXiv 1903.06059). Tokens that the plan filters out come only after all others.

    Args:
        measured: one position of one sequence; likewise `plan`.
        plan: the distribution to draw from.
        policy: whose plan it is.
        count: how many tokens.
        seed: the draw depends on this and the position alone.
        position: in the text.
    """
    gaps = measured.gaps
    if policy.needs_order:
        candidates, _, kept = _rank(gaps, plan, policy, at_least=count)
    else:
        candidates = Candidates(mx.broadcast_to(mx.arange(gaps.shape[-1]), gaps.shape), gaps)
        kept = relative_probability(gaps, plan.temperature) >= plan.min_p[:, None]
    temperature = mx.maximum(plan.temperature, MIN_TEMPERATURE)[:, None]
    key = mx.random.key(int.from_bytes(_hash(seed, position, "distinct")))
    noisy = mx.random.gumbel(gaps.shape[:1] + kept.shape[1:], key=key) - (
        candidates.gaps * LN_2 / temperature
    )
    noisy = mx.where(kept, noisy, noisy - FILTERED_OUT)
    noisy = mx.where(candidates.gaps == 0, math.inf, noisy)
    best = most_probable(-noisy, count).tokens
    drawn: list[list[int]] = numbers(mx.take_along_axis(candidates.tokens, best, axis=-1))
    return drawn[0]


def logprob(measured: Measured, tokens: mx.array) -> mx.array:
    """Return the natural log probabilities at temperature 1 of `(batch, n)` tokens."""
    gaps = mx.take_along_axis(measured.gaps, tokens, axis=-1)
    return (gaps + measured.top_surprise[:, None]) * -LN_2


def most_probable(gaps: mx.array, count: int) -> Candidates:
    """Return the `count` tokens of smallest gap, in order, without sorting the vocabulary.

    The vocabulary is cut into blocks, and only the `count` blocks with the smallest minima are
    searched. No better token can be elsewhere: each of those blocks holds one at least as good.
    """
    batch, vocab = gaps.shape
    count = min(count, vocab)
    tokens = mx.broadcast_to(mx.arange(vocab), gaps.shape)
    blocks = vocab // BLOCK
    if blocks > count:
        body = gaps[:, : blocks * BLOCK].reshape(batch, blocks, BLOCK)
        best = mx.argpartition(body.min(axis=-1), kth=count - 1, axis=-1)[:, :count]
        inside = best[..., None] * BLOCK + mx.arange(BLOCK)
        rest = tokens[:, blocks * BLOCK :]
        tokens = mx.concatenate([inside.reshape(batch, -1), rest], axis=-1)
        gaps = mx.take_along_axis(gaps, tokens, axis=-1)
    if count < tokens.shape[-1]:
        best = mx.argpartition(gaps, kth=count - 1, axis=-1)[:, :count]
        tokens = mx.take_along_axis(tokens, best, axis=-1)
        gaps = mx.take_along_axis(gaps, best, axis=-1)
    order = mx.argsort(gaps, axis=-1)
    return Candidates(
        mx.take_along_axis(tokens, order, axis=-1), mx.take_along_axis(gaps, order, axis=-1)
    )


def _rank(
    gaps: mx.array, plan: Plan, policy: Policy, at_least: int
) -> tuple[Candidates, mx.array, mx.array]:
    """Return the tokens that may survive the filters, best first, their weights, and which do.

    Each filter keeps a prefix of the ranked tokens.
    """
    ranked = most_probable(gaps, max(at_least, policy.max_top_k or gaps.shape[-1]))
    weights = relative_probability(ranked.gaps, plan.temperature)
    total = relative_probability(gaps, plan.temperature).sum(axis=-1, keepdims=True)
    before = mx.cumsum(weights, axis=-1, inclusive=False)
    rank = mx.arange(weights.shape[-1])
    top_k = mx.where(plan.top_k == TOP_K_OFF, weights.shape[-1], plan.top_k)
    kept = (
        (weights >= plan.min_p[:, None])
        & (rank < top_k[:, None])
        & (before < plan.top_p[:, None] * total)
    )
    if policy.excludes_top:  # the second survives instead, if no other does
        barred = (plan.strategy == CODE[Strategy.RESAMPLE])[:, None]
        kept = mx.where(barred, (kept | (rank == 1)) & (rank > 0), kept)
    return ranked, weights, kept


def _draw_ranked(gaps: mx.array, plan: Plan, policy: Policy, uniform: mx.array) -> mx.array:
    """Draw where ranks matter."""
    ranked, weights, kept = _rank(gaps, plan, policy, at_least=2 if policy.excludes_top else 1)
    drawn = _invert(mx.where(kept, weights, 0.0), uniform)
    # Of several drawn, the best has the lowest rank: confidence is the same for all of a position.
    chosen = mx.where(plan.strategy == CODE[Strategy.ADAPTIVE], drawn.min(axis=-1), drawn[:, 0])
    chosen = mx.where(plan.strategy == CODE[Strategy.ARGMAX], 0, chosen)
    return mx.take_along_axis(ranked.tokens, chosen[:, None], axis=-1)[:, 0]


def _draw_unranked(gaps: mx.array, plan: Plan, uniform: mx.array) -> mx.array:
    """Draw where min-p is the only filter: exact over the whole vocabulary, nothing sorted.

    First a block of tokens, then a token inside it: one running sum over the whole vocabulary in
    float32 would round its small probabilities away.
    """
    weights = relative_probability(gaps, plan.temperature)
    weights = mx.where(weights >= plan.min_p[:, None], weights, 0.0)
    batch, vocab = weights.shape
    padded = mx.pad(weights, [(0, 0), (0, -vocab % DRAW_BLOCK)])
    blocks = padded.reshape(batch, -1, DRAW_BLOCK)
    block = _invert(blocks.sum(axis=-1), uniform[..., 0])
    inside = mx.take_along_axis(blocks, block[..., None], axis=1)[:, 0]
    return (block * DRAW_BLOCK + _invert(inside, uniform[..., 1]))[:, 0]


def _invert(weights: mx.array, uniform: mx.array) -> mx.array:
    """Return, for `(batch, n)` weights and `(batch, draws)` uniforms, `(batch, draws)` indices.

    An index is drawn with a probability proportional to its weight. One of weight 0 never is: its
    cumulative weight is put to 0, which is not above uniform · total whatever was rounded.
    """
    cumulative = mx.where(weights > 0, mx.cumsum(weights, axis=-1), 0.0)
    total = cumulative.max(axis=-1, keepdims=True)
    above = cumulative[:, None, :] > (uniform * total)[..., None]
    return mx.argmax(above, axis=-1)
