"""The policies as samplers of mlx-lm, for programs that stay with its own loop.

    from mlx_lm import load, stream_generate
    from entropix_mlx.policies.mlx_lm import sampler

    model, tokenizer = load("mlx-community/gemma-3-1b-it-4bit")
    for response in stream_generate(model, tokenizer, prompt, sampler=sampler(tokenizer=tokenizer)):
        print(response.text, end="")

A sampler sees logits alone: attention counts as not measured, and there are no forks, since a
sampler cannot try a way and come back. Thinking text is inserted by a queue of forced tokens. All
of it is lazy: nothing waits for the device, so mlx-lm's pipeline runs as with its own samplers.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx

from ..profiles.profile import REFERENCE, Profile
from ..step import Strategy
from .draw import uniforms
from .memory import State
from .policy import CODE, Policy
from .position import position
from .registry import Overrides, make_policy

SEED_BITS = 32


def sampler(
    name: str = "entropix",
    profile: str | Path | Profile = REFERENCE,
    *,
    tokenizer: Any = None,
    seed: int | None = None,
    **overrides: Any,
) -> Callable[[mx.array], mx.array]:
    """Return a ``sampler=`` for mlx-lm's `stream_generate` and `BatchGenerator`.

    It counts the positions of one text, so make a new one for each answer. A sampler that several
    rows of a `BatchGenerator` share draws for each of them, and inserts and remembers nothing; give
    each sequence one of its own (``samplers=[…]``) where that is wanted.

    Args:
        name: of the policy, one of `POLICIES`.
        profile: thresholds, coefficients and options: a profile, its name or its file.
        tokenizer: mlx-lm's, which the thinking text is tokenised with; without one, and for
            policies that do not think, no text is inserted.
        seed: the same one repeats an answer on the same machine; None draws a fresh one.
        **overrides: fields of `Overrides`, such as ``temperature=0.5``.

    Raises:
        PolicyError: no such policy, or an override that it does not take.
        ProfileError: no such profile, or a bad one.
    """
    policy = make_policy(name, profile, Overrides(**overrides))
    return _Sampler(policy, tokenizer, secrets.randbits(SEED_BITS) if seed is None else seed)


def logits_processor(
    name: str = "entropix", profile: str | Path | Profile = REFERENCE, **options: Any
) -> Callable[[mx.array, mx.array], mx.array]:
    """Return one of mlx-lm's ``logits_processors=``, for where the sampler cannot be chosen.

    It leaves a single token possible, the one that the policy draws, so any sampler takes that one.
    The log probabilities that mlx-lm reports are those of this certainty.

    Args and errors: as for `sampler`.
    """
    draw = sampler(name, profile, **options)

    def process(tokens: mx.array, logits: mx.array) -> mx.array:
        chosen = draw(logits)[:, None]
        return mx.where(mx.arange(logits.shape[-1]) == chosen, 0.0, -math.inf).astype(logits.dtype)

    return process


class _Sampler:
    """Draws one token after another of a text."""

    def __init__(self, policy: Policy, tokenizer: Any, seed: int) -> None:
        self._policy = policy
        self._seed = seed
        self._at = 0
        self._state: State = ()
        self._queue = _Queue(policy, tokenizer) if tokenizer is not None else None

    def __call__(self, logits: mx.array) -> mx.array:
        """Return the drawn tokens `(rows,)` of `(rows, vocab)` logits or log probabilities."""
        rows, policy = logits.shape[0], self._policy
        random = [uniforms(self._seed + row, self._at, policy.draws) for row in range(rows)]
        unknown = mx.zeros((rows, 1, 1))  # attention is not measured here: it counts as 0
        state = self._state if rows == 1 else ()
        queued = position(policy, logits, [[unknown]], mx.array(random), state=state)
        self._at += 1
        token = queued.token
        if rows > 1:
            return token
        if self._queue is not None:
            token = self._queue.next(queued.plan.strategy, token)
        if policy.remembered is not None:
            lowered = logits.astype(mx.float32)
            own = mx.take_along_axis(lowered, token[:, None], axis=-1)[:, 0]
            logprob = own - mx.logsumexp(lowered, axis=-1)
            self._state = policy.remembered.observe(queued.noted, token, logprob)
        return token


class _Queue:
    """Forced tokens of thinking texts, as arrays, so that nobody waits to know what was decided."""

    def __init__(self, policy: Policy, tokenizer: Any) -> None:
        rule = policy.think
        items = rule.text if isinstance(rule.text, list) else [rule.text]
        encode = tokenizer.encode
        texts = [
            [item] if isinstance(item, int) else list(encode(item, add_special_tokens=False))
            for item in items
        ]
        longest = max(map(len, texts))
        self._texts = mx.array([text + [0] * (longest - len(text)) for text in texts])
        self._lengths = mx.array([len(text) for text in texts])
        self._most, self._gap = rule.max_insertions, rule.min_gap
        self._begun = mx.array(0)  # texts that were begun
        self._place = mx.array(0)  # of the next forced token in the last of them
        self._since = mx.array(self._gap)  # tokens since the last one ended

    def next(self, strategy: mx.array, drawn: mx.array) -> mx.array:
        """Return the token of this position, and move on.

        Args:
            strategy: `(1,)` code of what was decided.
            drawn: `(1,)` token that is taken where none is forced.
        """
        last = mx.maximum(self._begun - 1, 0) % self._lengths.size
        inside = (self._begun > 0) & (self._place < self._lengths[last])
        wanted = strategy[0] == CODE[Strategy.THINK]
        begins = wanted & ~inside & (self._begun < self._most) & (self._since >= self._gap)
        text = mx.where(begins, self._begun % self._lengths.size, last)
        place = mx.where(begins, 0, self._place)
        forced = begins | inside
        token = mx.where(
            forced, self._texts[text, mx.minimum(place, self._texts.shape[1] - 1)], drawn
        )
        self._begun = self._begun + begins
        self._place = mx.where(forced, place + 1, self._place)
        self._since = mx.where(forced, 0, self._since + 1)
        return token.astype(drawn.dtype)
