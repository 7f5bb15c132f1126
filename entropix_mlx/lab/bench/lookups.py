"""Measure what guesses from the text bring: on text that is copied, and on free text.

A guess pays where a pass of several tokens takes less time than as many passes; that is measured,
too, and docs/performance.md says what the table of `engine/speculation/ngram.py` makes of it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import mlx.core as mx
from mlx_lm.models.cache import KVCache
from mlx_lm.tokenizer_utils import TokenizerWrapper

from ...api.generate import stream_generate
from ...api.prompts import chat_prompt
from ...models.llama.cache import BlockCache, trim
from ...summary import Summary
from .pair import SEED, Pair, made_up_cache
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
        "Here is my shopping list. Write it again, with oat milk instead of milk:\n- apples\n"
        "- milk\n- brown bread\n- carrots\n- two onions\n- olive oil\n- pasta\n- dark chocolate",
        "Repeat this packing list, but change 'sandals' to 'boots':\n1. passport\n"
        "2. phone charger\n3. three T-shirts\n4. sandals\n5. rain jacket\n6. toothbrush\n"
        "7. sun cream\n8. a good book",
        "Write this list of meetings again and move the dentist to Friday:\n* Monday 9:00 - team"
        " meeting\n* Tuesday 14:30 - call with Mr. Brown\n* Wednesday 10:00 - dentist\n* Thursday"
        " 16:00 - parents' evening\n* Saturday 11:00 - football match",
        "Please repeat the following list of countries and capitals, but correct the capital of"
        " Australia to Canberra:\nFrance: Paris\nItaly: Rome\nAustralia: Sydney\nJapan: Tokyo\n"
        "Canada: Ottawa\nEgypt: Cairo\nSpain: Madrid",
        "Repeat this recipe's ingredients with one change: use honey in place of sugar.\n200 g"
        " flour\n100 g sugar\n2 eggs\n50 g butter\n1 teaspoon baking powder\n1 pinch of salt\n"
        "150 ml milk",
    ),
    "continue JSON": (
        'Continue this JSON with more products:\n{\n  "products": [\n    {\n      "id": 101,\n'
        '      "title": "Desk lamp",\n      "price": 24.99,\n      "in_stock": true\n    },\n'
        '    {\n      "id": 102,\n      "title": "Office chair",\n      "price": 129.00,\n'
        '      "in_stock": false\n    },\n',
        'Continue this JSON:\n{"users": [{"id": 1, "name": "Anna", "active": true}, {"id": 2,'
        ' "name": "Ben", "active": false}, {"id": 3, "name": "Carl", "active": true},',
        'Continue this JSON:\n[\n  {"city": "Paris", "country": "France", "population": 2148000},\n'
        '  {"city": "Rome", "country": "Italy", "population": 2873000},\n'
        '  {"city": "Madrid", "country": "Spain", "population": 3223000},\n',
        'Continue this JSON with three more employees:\n{\n  "employees": [\n    {\n      "name":'
        ' "Laura Schmidt",\n      "age": 34,\n      "department": "Sales",\n      "remote": false\n'
        '    },\n    {\n      "name": "Tom Becker",\n      "age": 28,\n      "department": "IT",\n'
        '      "remote": true\n    },\n',
        'Complete this JSON file, one entry for each day of the week:\n{\n  "opening_hours": [\n'
        '    {"day": "Monday", "open": "09:00", "close": "18:00"},\n'
        '    {"day": "Tuesday", "open": "09:00", "close": "18:00"},\n',
        'Continue this JSON:\n{\n  "questions": [\n    {\n      "id": 1,\n      "question":'
        ' "What is 2 + 2?",\n      "answer": "4",\n      "points": 5\n    },\n    {\n      "id":'
        ' 2,\n      "question": "What is 3 + 5?",\n      "answer": "8",\n      "points": 5\n'
        "    },\n",
        'Continue this JSON list of books:\n{"books": [{"title": "Dracula", "author": "Bram'
        ' Stoker", "year": 1897}, {"title": "Emma", "author": "Jane Austen", "year": 1815},'
        ' {"title": "Moby-Dick", "author": "Herman Melville", "year": 1851},',
    ),
    "correct the spelling": (
        "Correct the spelling of this paragraph: My favorit animal is the elefant. It is the"
        " largest land animal in the world. Elephants live in Africa and Asia, and they eat grass,"
        " leaves and fruit. They are very inteligent and have a good memry.",
        "Correct the spelling mistakes in the following text and write the whole text again: Last"
        " sumer we went to the beach with our freinds. We swam in the ocean, built sand castels,"
        " and ate ice cream every day. My brother colected shells and my sister read a book under"
        " the umbrela.",
        "Correct the spelling of this paragraph: Yesterday I recieved a leter from my grandmother."
        " She wrote that her garden is beatiful this spring and that the roses allready bloom. Next"
        " week I will vist her and bring a choclate cake.",
        "Please correct the spelling:\n\nThe libary is open from Monday to Saterday. You can borow"
        " up to ten books for four weeks. If you return a book to late, you must pay a small fee."
        " Children under twelve do not need to pay anythink.",
        "Correct the spelling of this paragraph.\n\nClimate is the avarage weather of a place over"
        " many years. It depends on the distence from the equator, the hight above the sea and the"
        " wind. Scientists mesure the temperature and the rain every day.",
        "Fix the spelling mistakes in this email:\n\nDear Mr. Miller,\n\nthank you for your mesage."
        " I am sory that I could not come to the meeting on Tuesday, becuase my train was late."
        " Could we meet tomorow at ten o'clock insted?\n\nBest regards,\nSarah",
        "Correct the spelling of this paragraph: My brother wants to becom a pilot. He allways"
        " looks at the planes that fly over our house and knows ther names. For his birthday he"
        " got a modell of a plane, and he bilt it in one afternoon.",
    ),
}
"""Prompts whose answers copy from them, of three kinds. The first of each is measured: one that the
demo model copies. The last five of each were written before any was measured."""
FREE = "Why is the sky blue?"


def measure_lookup(pair: Pair, tokenizer: TokenizerWrapper, effort: Effort) -> list[Figure]:
    """Return the figures; an answer is too long for some models.

    Args:
        pair: the model.
        tokenizer: says where an answer ends, since what came after that would repeat itself.
        effort: how much to measure.
    """
    figures = _passes(pair, effort)
    prompts = {case: texts[0] for case, texts in COPYING.items()} | {FREE_TEXT: FREE}
    for case, prompt in prompts.items():
        tokens = chat_prompt(tokenizer, prompt)
        if len(tokens) + effort.lookup_tokens <= pair.model.config.max_position_embeddings:
            for sampler in effort.lookup_samplers:
                answer = _Asked(tokenizer, tokens, f"{case}, {sampler}", sampler)
                figures += _answers(pair, effort, answer)
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


class _Asked(NamedTuple):
    tokenizer: TokenizerWrapper
    prompt: list[int]
    case: str
    sampler: str


def _answers(pair: Pair, effort: Effort, asked: _Asked) -> list[Figure]:
    """Return the speed with guesses and without; all write the same text."""
    found: dict[str, Summary] = {}
    began = 0.0

    def progress(done: int, total: int) -> None:
        nonlocal began
        if done == total:
            began = time.perf_counter()

    def run(name: str, speculation: str = "off", **options: Any) -> float:
        options |= {"speculation": speculation, "sampler": asked.sampler, "on_prefill": progress}
        options |= {"max_tokens": effort.lookup_tokens, "seed": SEED}
        steps = stream_generate(pair.model, asked.tokenizer, asked.prompt, **options)
        found[name] = Summary.of(steps)
        return found[name].completion_tokens / (time.perf_counter() - began)

    contenders = {OFF: partial(run, OFF), AUTO: partial(run, AUTO, "auto")}
    if pair.draft is not None:
        contenders[DRAFTED] = partial(run, DRAFTED, draft_model=pair.draft)
    speeds = in_turns(contenders, effort.lookup_repeats)
    figures = to_figures(LOOKUP, asked.case, "tokens/s", speeds, (OFF,))
    length = f"an answer of {found[OFF].completion_tokens} tokens"
    kept = (replace(one, note=_kept(found[one.name])) for one in figures[1:])
    return [replace(figures[0], note=length), *kept]


def _kept(summary: Summary) -> str:
    passes = f"{summary.tokens_per_pass:.2f} tokens a pass"
    return f"{passes}, {summary.accepted} of {summary.proposed} guesses kept"
