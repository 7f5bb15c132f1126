"""From a prompt to text: the functions that mlx-lm's users will look for."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from threading import Event
from typing import Any

from mlx_lm.models.cache import KVCache
from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..models.llama import AttentionLayers, Model
from ..policies.registry import Overrides, make_policy
from ..profiles.choice import AUTO, resolve
from ..profiles.profile import Profile
from ..step import Step
from .decode import decode
from .hooks import Choose, Hooks
from .job import Job
from .prompts import text_prompt
from .text import Text


def stream_generate(
    model: Model,
    tokenizer: TokenizerWrapper,
    prompt: str | list[int],
    max_tokens: int = 256,
    *,
    sampler: str = "entropix",
    profile: str | Path | Profile = AUTO,
    changes: Mapping[str, Mapping[str, Any]] | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    seed: int | None = None,
    attention_layers: AttentionLayers = "last",
    top_logprobs: int = 0,
    stop: tuple[str, ...] = (),
    prompt_cache: list[KVCache] | None = None,
    cancel: Event | None = None,
    on_prefill: Callable[[int, int], None] | None = None,
    choose: Choose | None = None,
    pipelined: bool = True,
) -> Iterator[Step]:
    """Generate from a prompt, one `Step` a token.

    Args:
        model: from `load`.
        tokenizer: from `load`.
        prompt: token ids, such as `chat_prompt` returns, or a text to continue.
        max_tokens: the most tokens to generate; −1 for as many as the context holds.
        sampler: a policy: ``"entropix"`` or one of the baselines in `POLICIES`.
        profile: thresholds and coefficients: a profile, its name or its file; ``"auto"`` is the one
            that was calibrated for the model, or ``"reference"``.
        changes: fields of the profile to change: ``{"thresholds": {"low_entropy": 0.2}}``.
        temperature: replaces the profile's or the baseline's own; likewise `top_p`, `top_k`
            and `min_p`.
        top_p: above 0 and at most 1.
        top_k: 0 is off, for the baselines.
        min_p: between 0 and 1.
        seed: the same seed gives the same steps on the same machine; None takes a fresh one.
        attention_layers: ``"last"`` or ``"all"``: which layers' attention is measured.
        top_logprobs: how many of the most probable tokens a step lists.
        prompt_cache: from ``model.make_cache()``, holding the tokens before the prompt.
        cancel: set it, from any thread, to stop before the next token.
        on_prefill: called with the prompt tokens processed so far and their number.
        choose: called with a `Branch` where its two best rollouts score alike; returns the index of
            the one to take. Without it, the best is taken.
        pipelined: False reads every token before the next is queued; slower, and the same steps.

    Raises:
        EntropixError: one of its kinds, saying what is wrong and what to do.
    """
    resolved = resolve(profile, model.config, changes)
    policy = make_policy(sampler, resolved, Overrides(temperature, top_p, top_k, min_p))
    tokens = text_prompt(tokenizer, prompt) if isinstance(prompt, str) else list(prompt)
    job = Job(
        tokens,
        policy,
        secrets.randbits(32) if seed is None else seed,
        max_tokens=max_tokens,
        attention_layers=attention_layers,
        top_logprobs=top_logprobs,
        stop=stop,
        hooks=Hooks(cancel, on_prefill, choose),
    )
    text = None if prompt_cache is None else Text(prompt_cache)
    return decode(model, tokenizer, job, text, pipelined=pipelined)


def generate(
    model: Model,
    tokenizer: TokenizerWrapper,
    prompt: str | list[int],
    max_tokens: int = 256,
    **options: Any,
) -> str:
    """Return the generated text; takes the options of `stream_generate`."""
    return "".join(
        step.text for step in stream_generate(model, tokenizer, prompt, max_tokens, **options)
    )
