"""Measure the gain of proposed tokens: on text that is copied, and on free text.

A proposal pays where a pass of several tokens takes less time than as many passes; that is
measured, too, and docs/performance.md says what the table of `engine/speculation/ngram.py` makes of
it.
"""

from __future__ import annotations

import time
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib import resources
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from ...api.generate import stream_generate
from ...api.prompts import chat_prompt
from ...models.llama.cache import BlockCache, trim
from ...summary import Summary
from .figures import Effort, Figure, in_turns, seconds, to_figures
from .pair import SEED, Pair, made_up_cache

PASSES = "a pass of several tokens"
SPECULATION = "speculation"
OFF, AUTO, DRAFTED = "entropix, no speculation", "entropix, n-grams", "entropix, draft model"
FREE_TEXT = "free text"
CONTEXT = 128
"""Tokens in the cache where passes are measured, or fewer if the model cannot hold so many."""
FREE = "Why is the sky blue?"


def copying_prompts() -> dict[str, list[str]]:
    """Return prompts whose answers copy from them, by their kind; the first is what is measured."""
    file = resources.files(__package__) / "copying.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"))


def measure_speculation(pair: Pair, effort: Effort) -> list[Figure]:
    """Return the figures; an answer is too long for some models.

    Answers end where they end: what came after that would repeat itself.
    """
    figures = _passes(pair, effort)
    prompts = {case: texts[0] for case, texts in copying_prompts().items()} | {FREE_TEXT: FREE}
    for case, prompt in prompts.items():
        tokens = chat_prompt(pair.ending, prompt)
        if len(tokens) + effort.speculation_tokens <= pair.model.config.max_position_embeddings:
            for sampler in effort.speculation_samplers:
                generate = partial(
                    stream_generate,
                    pair.model,
                    pair.ending,
                    tokens,
                    sampler=sampler,
                    max_tokens=effort.speculation_tokens,
                    seed=SEED,
                )
                figures += _answers(pair, effort, f"{case}, {sampler}", generate)
    return figures


def _passes(pair: Pair, effort: Effort) -> list[Figure]:
    room = pair.model.config.max_position_embeddings
    cache = made_up_cache(pair.model, min(CONTEXT, room // 2))
    names = {f"{length} token{'s' * (length > 1)}": length for length in effort.passes}
    timed = {name: partial(_milliseconds, pair, cache, length) for name, length in names.items()}
    for run in timed.values():
        run()  # a warm-up
    times = in_turns(timed, effort.repeats)
    return to_figures(PASSES, f"context {cache[0].offset}", "ms", times, tuple(names)[:1])


def _milliseconds(pair: Pair, cache: Sequence[KVCache], length: int) -> float:
    tokens = mx.zeros((1, length), dtype=mx.int32)
    layers = [BlockCache(layer) for layer in cache] if length > 1 else cache
    before = cache[0].offset
    taken = seconds(lambda: mx.eval(pair.model(tokens, layers)))
    trim(cache, before)
    return 1000 * taken


def _answers(pair: Pair, effort: Effort, case: str, generate: Any) -> list[Figure]:
    """Return the speed behind the prompt with proposals and without; all write the same text."""
    found: dict[str, Summary] = {}
    began = 0.0

    def progress(done: int, total: int) -> None:
        nonlocal began
        if done == total:
            began = time.perf_counter()

    def run(name: str, **options: Any) -> float:
        found[name] = Summary.of(generate(on_prefill=progress, **options))
        return found[name].completion_tokens / (time.perf_counter() - began)

    contenders = {
        OFF: partial(run, OFF, speculation="off"),
        AUTO: partial(run, AUTO, speculation="auto"),
    }
    if pair.draft is not None:
        contenders[DRAFTED] = partial(run, DRAFTED, speculation="off", draft_model=pair.draft)
    speeds = in_turns(contenders, effort.repeats)
    first, *others = to_figures(SPECULATION, case, "tokens/s", speeds, (OFF,))
    length = f"an answer of {found[OFF].completion_tokens} tokens"
    accepted = [replace(one, note=_accepted(found[one.name])) for one in others]
    return [replace(first, note=length), *accepted]


def _accepted(summary: Summary) -> str:
    passes = f"{summary.tokens_per_pass:.2f} tokens a pass"
    return f"{passes}, {summary.accepted} of {summary.proposed} proposed tokens accepted"
