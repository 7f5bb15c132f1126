"""The samplers as samplers of mlx-lm, for programs that stay with its own loop.

    from mlx_lm import load, stream_generate
    from entropix_mlx.samplers.mlx_lm import sampler

    model, tokenizer = load("mlx-community/gemma-3-1b-it-4bit")
    for response in stream_generate(model, tokenizer, prompt, sampler=sampler(seed=1)):
        print(response.text, end="")

A sampler sees logits alone: attention counts as not measured, and there are no forks and no
thinking, since a sampler neither knows the text nor can try a branch and come back. Where those
would be, it draws with the strategy's parameters. All of it is lazy: nothing waits for the device,
so mlx-lm's pipeline runs as with its own samplers.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx

from ..profiles.profile import REFERENCE, Profile
from .base import Sampler
from .draw import uniforms
from .position import sample
from .registry import make_sampler
from .state import State

SEED_BITS = 32


def sampler(
    name: str = "entropix",
    profile: str | Path | Profile = REFERENCE,
    *,
    seed: int | None = None,
    **given: Any,
) -> Callable[[mx.array], mx.array]:
    """Return a ``sampler=`` for mlx-lm's `stream_generate` and `BatchGenerator`.

    It counts the positions of one text, so make a new one for each answer. A sampler that several
    rows of a `BatchGenerator` share draws for each of them, and remembers nothing; give each
    sequence one of its own (``samplers=[…]``) where that is wanted.

    Args:
        name: of the sampler, one of `SAMPLERS`.
        profile: thresholds, coefficients and options: a profile, its name or its file.
        seed: the same one repeats an answer on the same machine; None draws a fresh one.
        **given: sampling parameters, such as ``temperature=0.5``.

    Raises:
        SamplerError: no such sampler, or a parameter that it does not take.
        ProfileError: no such profile, or a bad one.
    """
    sampler = make_sampler(name, profile, given)
    return _TokenSource(sampler, secrets.randbits(SEED_BITS) if seed is None else seed)


def logits_processor(
    name: str = "entropix", profile: str | Path | Profile = REFERENCE, **options: Any
) -> Callable[[mx.array, mx.array], mx.array]:
    """Return one of mlx-lm's ``logits_processors=``, for where the sampler cannot be chosen.

    It leaves one token possible, the one that the sampler draws, so any sampler takes it.
    The log probabilities that mlx-lm reports are those of this certainty.

    Args and errors: as for `sampler`.
    """
    draw = sampler(name, profile, **options)

    def process(tokens: mx.array, logits: mx.array) -> mx.array:
        chosen = draw(logits)[:, None]
        return mx.where(mx.arange(logits.shape[-1]) == chosen, 0.0, -math.inf).astype(logits.dtype)

    return process


class _TokenSource:
    """Draws one token after another of a text."""

    def __init__(self, sampler: Sampler, seed: int) -> None:
        self._sampler = sampler
        self._seed = seed
        self._at = 0
        self._state: State = ()

    def __call__(self, logits: mx.array) -> mx.array:
        """Return the drawn tokens `(rows,)` of `(rows, vocab)` logits or log probabilities."""
        rows, sampler = logits.shape[0], self._sampler
        random = [uniforms(self._seed + row, self._at, sampler.draws) for row in range(rows)]
        unknown = mx.zeros((rows, 1, 1))  # attention is not measured here: it counts as 0
        state = self._state if rows == 1 else ()
        queued = sample(sampler, logits, [[unknown]], mx.array(random), state=state)
        self._at += 1
        token = queued.token
        if rows == 1 and sampler.remembered is not None:
            lowered = logits.astype(mx.float32)
            own = mx.take_along_axis(lowered, token[:, None], axis=-1)[:, 0]
            logprob = own - mx.logsumexp(lowered, axis=-1)
            self._state = sampler.remembered.observe(queued.state, token, logprob)
        return token
