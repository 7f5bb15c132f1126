"""The samplers as samplers of mlx-lm, for programs that stay with its own loop.

    from mlx_lm import load, stream_generate
    from entropix_mlx.samplers.processor import sampler

    model, tokenizer = load("mlx-community/gemma-3-1b-it-4bit")
    for response in stream_generate(model, tokenizer, prompt, sampler=sampler(seed=1)):
        print(response.text, end="")

A sampler sees logits alone: attention counts as not measured, and where forks and thoughts would
be, it draws with the strategy's parameters. Nothing waits for the device, so mlx-lm's pipeline runs
on.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx

from ..profiles.profile import REFERENCE, Profile
from .draw import uniforms
from .position import sample
from .registry import make_sampler


def sampler(
    name: str = "entropix",
    profile: str | Path | Profile = REFERENCE,
    *,
    seed: int | None = None,
    **given: Any,
) -> Callable[[mx.array], mx.array]:
    """Return a ``sampler=`` for mlx-lm's `stream_generate` and `BatchGenerator`.

    It counts the positions of one text, so make a new one for each answer. One that several rows of
    a `BatchGenerator` share penalises nothing; give each sequence its own (``samplers=[…]``).

    Args:
        name: of the sampler, one of `SAMPLERS`.
        profile: thresholds, coefficients and options: a profile, its name or its file.
        seed: the same one repeats an answer on the same machine; None draws a fresh one.
        **given: sampling parameters, such as ``temperature=0.5``.

    Raises:
        SamplerError, ProfileError: as of `make_sampler`.
    """
    sampler = make_sampler(name, profile, given)
    chosen_seed = secrets.randbits(32) if seed is None else seed
    places = itertools.count()
    drawn: list[mx.array] = []

    def draw(logits: mx.array) -> mx.array:
        rows, at = logits.shape[0], next(places)
        random = [uniforms(chosen_seed + row, at, sampler.draws) for row in range(rows)]
        changed = None
        if sampler.penalties is not None and rows == 1:
            text = mx.concatenate(drawn) if drawn else mx.array([], dtype=mx.uint32)
            changed = sampler.penalties(logits, text, text.size)
        queued = sample(sampler, logits, None, mx.array(random), changed=changed)
        drawn.append(queued.token)
        return queued.token

    return draw
