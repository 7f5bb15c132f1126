"""Measure what guesses from the text bring: on text that repeats itself, and on free text.

A guess pays where a pass of several tokens takes less time than as many passes; that is measured,
too, and docs/performance.md says what the table of `decoding/lookup.py` makes of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from ...decoding.prompts import chat_prompt
from ...models.cache import Watched, trim
from ...summary import Summary
from .pair import Pair, made_up_cache
from .records import Effort, Figure
from .timing import in_turns, seconds, to_figures

PASSES = "a pass of several tokens"
LOOKUP = "looking up the next tokens"
OFF, AUTO = "entropix, no lookup", "entropix, lookup"
CONTEXT = 128
"""Tokens in the cache where passes are measured, or fewer if the model cannot hold so many."""
PROMPTS = {
    "repeats itself": "Repeat this list three times: apples, pears, plums, cherries, lemons, figs.",
    "free": "Why is the sky blue?",
}


def measure_lookup(pair: Pair, effort: Effort) -> list[Figure]:
    """Return the figures; an answer is too long for some models."""
    figures = _passes(pair, effort)
    for case, prompt in PROMPTS.items():
        tokens = chat_prompt(pair.tokenizer, prompt)
        if len(tokens) + effort.lookup_tokens <= pair.model.config.max_position_embeddings:
            figures += _answers(pair, effort, tokens, case)
    return figures


def _passes(pair: Pair, effort: Effort) -> list[Figure]:
    room = pair.model.config.max_position_embeddings
    cache = made_up_cache(pair.model, min(CONTEXT, room // 2))
    names = {f"{length} tokens": length for length in effort.passes}
    timed = {name: partial(_milliseconds, pair, cache, length) for name, length in names.items()}
    for run in timed.values():
        run()  # a warm-up
    times = in_turns(timed, effort.repeats)
    return to_figures(PASSES, f"context {cache[0].offset}", "ms", times, tuple(names)[:1])


def _milliseconds(pair: Pair, cache: Sequence[KVCache], length: int) -> float:
    tokens = mx.zeros((1, length), dtype=mx.int32)
    layers = [Watched(layer) for layer in cache] if length > 1 else cache
    before = cache[0].offset
    taken = seconds(lambda: mx.eval(pair.model(tokens, layers)))
    trim(cache, before)
    return 1000 * taken


def _answers(pair: Pair, effort: Effort, prompt: list[int], case: str) -> list[Figure]:
    """Return the speed with and without guesses, greedy, so that both write the same text."""
    found: dict[str, Summary] = {}

    def run(lookup: str) -> float:
        steps = pair.ours(prompt, effort.lookup_tokens, sampler="greedy", lookup=lookup)
        found[lookup] = Summary.of(steps)
        return found[lookup].tokens_per_second

    contenders = {OFF: partial(run, "off"), AUTO: partial(run, "auto")}
    speeds = in_turns(contenders, effort.lookup_repeats)
    off, auto = to_figures(LOOKUP, case, "tokens/s", speeds, (OFF,))
    summary = found["auto"]
    note = f"{summary.tokens_per_pass:.2f} tokens a pass"
    return [off, replace(auto, note=f"{note}, {summary.kept} of {summary.guessed} guesses kept")]
