"""Measure what guesses from the text bring: on text that is copied, and on free text.

A guess pays where a pass of several tokens takes less time than as many passes; that is measured,
too, and docs/performance.md says what the table of `decoding/lookup.py` makes of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

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
OFF, AUTO, DRAFTED = "entropix, no lookup", "entropix, lookup", "entropix, draft model"
FREE_TEXT = "free text"
CONTEXT = 128
"""Tokens in the cache where passes are measured, or fewer if the model cannot hold so many."""
COPYING = {
    "repeat a list": (
        "Copy this list of tasks. Change only the word 'garden' to 'kitchen':\n1. Clean the garden"
        " before noon\n2. Call the plumber about the sink\n3. Buy a new lamp for the living room\n"
        "4. Write a letter to Aunt Mary\n5. Pay the electricity bill\n6. Take the dog to the park",
        "Repeat this list, but replace Monday by Sunday: Monday, Tuesday, Wednesday, Thursday,"
        " Friday, Saturday, apples, pears, plums, cherries, lemons, figs.",
        "Repeat this list with one change, replace milk with juice:\n- bread\n- eggs\n- milk\n"
        "- butter\n- cheese\n- tomatoes\n- rice\n- coffee\n- sugar\n- flour",
    ),
    "continue JSON": (
        'Continue this JSON with more products:\n{\n  "products": [\n    {\n      "id": 101,\n'
        '      "title": "Desk lamp",\n      "price": 24.99,\n      "in_stock": true\n    },\n'
        '    {\n      "id": 102,\n      "title": "Office chair",\n      "price": 129.00,\n'
        '      "in_stock": false\n    },\n',
        'Continue this JSON:\n{"users": [{"id": 1, "name": "Anna", "active": true}, {"id": 2,'
        ' "name": "Ben", "active": false}, {"id": 3, "name": "Carl", "active": true},',
    ),
    "correct the spelling": (
        "Correct the spelling of this paragraph: My favorit animal is the elefant. It is the"
        " largest land animal in the world. Elephants live in Africa and Asia, and they eat grass,"
        " leaves and fruit. They are very inteligent and have a good memry.",
        "Correct the spelling mistakes in the following text and write the whole text again: Last"
        " sumer we went to the beach with our freinds. We swam in the ocean, built sand castels,"
        " and ate ice cream every day. My brother colected shells and my sister read a book under"
        " the umbrela.",
    ),
}
"""Prompts whose answers copy from them, of three kinds; the first of each is measured."""
FREE = "Why is the sky blue?"


def measure_lookup(pair: Pair, effort: Effort) -> list[Figure]:
    """Return the figures; an answer is too long for some models."""
    figures = _passes(pair, effort)
    prompts = {case: texts[0] for case, texts in COPYING.items()} | {FREE_TEXT: FREE}
    for case, prompt in prompts.items():
        tokens = chat_prompt(pair.tokenizer, prompt)
        if len(tokens) + effort.lookup_tokens <= pair.model.config.max_position_embeddings:
            for sampler in effort.lookup_samplers:
                figures += _answers(pair, effort, tokens, case, sampler)
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


def _answers(
    pair: Pair, effort: Effort, prompt: list[int], case: str, sampler: str
) -> list[Figure]:
    """Return the speed with guesses and without; all write the same text."""
    found: dict[str, Summary] = {}

    def run(name: str, **options: Any) -> float:
        steps = pair.ours(prompt, effort.lookup_tokens, sampler=sampler, **options)
        found[name] = Summary.of(steps)
        return found[name].tokens_per_second

    contenders = {OFF: partial(run, OFF), AUTO: partial(run, AUTO, lookup="auto")}
    if pair.draft is not None:
        contenders[DRAFTED] = partial(run, DRAFTED, draft_model=pair.draft)
    speeds = in_turns(contenders, effort.lookup_repeats)
    figures = to_figures(LOOKUP, f"{case}, {sampler}", "tokens/s", speeds, (OFF,))
    return [figures[0], *(replace(one, note=_kept(found[one.name])) for one in figures[1:])]


def _kept(summary: Summary) -> str:
    passes = f"{summary.tokens_per_pass:.2f} tokens a pass"
    return f"{passes}, {summary.kept} of {summary.guessed} guesses kept"
