"""Changes of the logits that any sampler can draw from: a bias, penalties, DRY.

They are made in this order, as llama.cpp does, with z the logit of a token in nats:

1. `logit_bias` (OpenAI): z ← z + bias.
2. `repetition_penalty` θ (Keskar et al., arXiv 1909.05858): of every token that stands in the
   prompt or the answer, z ← z / θ if z > 0, else z ← z · θ.
3. `frequency_penalty` f and `presence_penalty` q (OpenAI): z ← z − n f − q, if the token stands
   n > 0 times in the answer. The prompt does not count.
4. DRY (text-generation-webui, pull request 5677; llama.cpp): let n be the length of the longest
   piece of text that ends the prompt and answer so far and stood there before, followed by this
   token. If n ≥ `dry_allowed_length`, z ← z − `dry_multiplier` · `dry_base` ^ (n −
   `dry_allowed_length`). No such piece contains a breaker (a line break, a colon, a double quote or
   an asterisk), and a breaker is not penalised.

2 to 4 consider the last `WINDOW` tokens of the text. In DRY, a piece of more than `LONGEST` tokens
counts as one of `LONGEST`.

Only the draw sees the result: metrics, thresholds and log probabilities are the model's own. A
sampler's filters act on the changed logits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import mlx.core as mx

from .base import NO_TOKEN, WINDOW, Sampler, State

LONGEST = 50  # the longest piece of text that DRY tells apart from longer ones
LARGEST_PENALTY = 1e6  # nats. Less a larger number, a float32 logit would be lost.
DRY = {"dry_multiplier": 0.0, "dry_base": 1.75, "dry_allowed_length": 2}
"""Values where none are given; a multiplier of 0 is off."""


def adjusted(sampler: Sampler, given: Mapping[str, Any]) -> Sampler:
    """Return a sampler that draws from logits changed by the parameters above, if they change
    any."""
    numbers: dict[str, mx.array] = {}
    if given.get("logit_bias"):
        biases: Mapping[int, float] = given["logit_bias"]
        numbers["biased"] = mx.array(list(biases))
        numbers["biases"] = mx.array(list(biases.values()), dtype=mx.float32)
    if given.get("repetition_penalty", 1.0) != 1.0:
        numbers["repetition"] = mx.array(float(given["repetition_penalty"]))
    counted = [float(given.get(name, 0.0)) for name in ("frequency_penalty", "presence_penalty")]
    if any(counted):
        numbers["counted"] = mx.array(counted)
    dry = {name: float(given.get(name, value)) for name, value in DRY.items()}
    if dry["dry_multiplier"] > 0:
        numbers["dry"] = mx.array(list(dry.values()))
    return replace(sampler, adjustment=numbers) if numbers else sampler


def adjust(logits: mx.array, numbers: Mapping[str, mx.array], state: State) -> mx.array:
    """Return the logits `(rows, vocab)` that are drawn from; the state is a `Window`'s."""
    logits = logits.astype(mx.float32)
    window, answered, breakers = state
    if "biased" in numbers:
        logits = logits.at[:, numbers["biased"]].add(numbers["biases"])
    if "repetition" in numbers:
        penalty = numbers["repetition"]
        penalised = mx.where(logits > 0, logits / penalty, logits * penalty)
        logits = mx.where(_counts(window, logits) > 0, penalised, logits)
    if "counted" in numbers:
        frequency, presence = mx.split(numbers["counted"], 2)
        of_answer = mx.arange(WINDOW) >= WINDOW - answered
        counts = _counts(mx.where(of_answer, window, NO_TOKEN), logits)
        logits = logits - counts * frequency - (counts > 0) * presence
    if "dry" in numbers:
        logits = logits - _dry(window, breakers, logits, numbers["dry"])
    return logits


def _counts(tokens: mx.array, logits: mx.array) -> mx.array:
    """Return how often each token of the vocabulary is among `(rows, n)` tokens."""
    rows, vocab = logits.shape
    counts = mx.zeros((rows, vocab + 1))
    index = mx.where(tokens == NO_TOKEN, vocab, tokens)
    return counts.at[mx.arange(rows)[:, None], index].add(1.0)[:, :vocab]


def _dry(window: mx.array, breakers: mx.array, logits: mx.array, numbers: mx.array) -> mx.array:
    """Return what DRY takes from each logit.

    1. For every place i of the text, `earlier` is the piece of `LONGEST` tokens that ends there: a
       view of the text, with the pieces beside one another.
    2. Each is compared with the piece that ends the text, `end`. How many of the last tokens in a
       row are equal, up to a breaker, is the length of the piece that occurred before.
    3. Each length belongs to the token that follows i, and the longest of a token counts.
    """
    rows, vocab = logits.shape
    multiplier, base, allowed = mx.split(numbers, 3)
    before = mx.full((rows, LONGEST - 1), NO_TOKEN, dtype=window.dtype)
    padded = mx.concatenate([before, window], axis=-1)
    shape = (rows, LONGEST, WINDOW - 1)
    earlier = mx.as_strided(padded, shape, (padded.shape[-1], 1, 1))
    end = window[:, -LONGEST:]
    usable = (end != NO_TOKEN) & ~_is_breaker(end, breakers)
    equal = (earlier == end[:, :, None]) & usable[:, :, None]
    lengths = mx.cumprod(equal.astype(mx.float32), axis=1, reverse=True).sum(axis=1)
    following = window[:, 1:]
    counts = (following != NO_TOKEN) & ~_is_breaker(following, breakers)
    longest = mx.zeros((rows, vocab + 1))
    index = mx.where(counts, following, vocab)
    longest = longest.at[mx.arange(rows)[:, None], index].maximum(lengths)[:, :vocab]
    penalty = multiplier * mx.power(base, mx.maximum(longest - allowed, 0.0))
    repeats = (longest >= allowed) & (longest > 0)
    return mx.where(repeats, mx.minimum(penalty, LARGEST_PENALTY), 0.0)


def _is_breaker(tokens: mx.array, breakers: mx.array) -> mx.array:
    return (tokens[:, :, None] == breakers[:, None, :]).any(axis=-1)
