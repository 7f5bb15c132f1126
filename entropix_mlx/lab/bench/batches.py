"""Measure passes of several tokens: many answers at once, branches of a fork, and speculation."""

from __future__ import annotations

import random
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from importlib import resources
from typing import Any

import mlx.core as mx
from mlx_lm.generate import BatchGenerator
from mlx_lm.models.cache import KVCache

from ...api.batch import batch_generate
from ...api.generate import stream_generate
from ...api.prompts import chat_prompt
from ...models.llama.cache import BlockCache, trim
from ...settings import Settings
from ...summary import Summary
from .figures import Effort, Figure, in_turns, peak_bytes, seconds, to_figures
from .pair import (
    GREEDY,
    LAST,
    PROMPT,
    SAMPLED,
    SEED,
    UNINTERRUPTED,
    Pair,
    chain,
    copies,
    made_up_cache,
)

MANY = "many answers at once"
FORK_TIME, FORK_MEMORY = "fork, time", "fork, memory"
AT_ONCE, ONE_BY_ONE = "one batch", "one by one"
PASSES = "a pass of several tokens"
SPECULATION = "speculation"
OFF, AUTO, DRAFTED = "entropix, no speculation", "entropix, n-grams", "entropix, draft model"
FREE_TEXT = "free text"
CONTEXT = 128
"""Tokens in the cache where passes are measured, or fewer if the model cannot hold so many."""
FREE = "Why is the sky blue?"
FORKED = {"trigger": "chance", "trigger_at": 1.0, "max_branches": 1, "halve_from": 0}
"""Fields of a profile's `branch` with which an answer begins with a fork of full depth."""


def measure_many(pair: Pair, effort: Effort) -> list[Figure]:
    """Return the tokens per second of several answers together; too long for some models.

    Both programs compute the prompts first. The clock runs from when every answer has a token until
    as many tokens have come as the effort has for each answer, so all passes that are counted are
    full.
    """
    figures: list[Figure] = []
    for answers in effort.at_once:
        # The first answer to begin is some tokens ahead of the last.
        limit = effort.tokens + 4 * answers
        if effort.prompt + limit > pair.model.config.max_position_embeddings:
            continue
        prompts = _prompts(pair, effort.prompt, answers)
        contenders = {
            GREEDY: partial(_theirs, pair, prompts, limit, None),
            SAMPLED: partial(_theirs, pair, prompts, limit, chain()),
            LAST: partial(_ours, pair, prompts, limit),
        }
        timed = {
            name: partial(_tokens_per_second, contender, answers, answers * effort.tokens)
            for name, contender in contenders.items()
        }
        for contender in timed.values():
            contender()  # a warm-up
        speeds = in_turns(timed, effort.repeats)
        case = f"{answers} at once, prompts of {effort.prompt}"
        figures += to_figures(MANY, case, "tokens/s", speeds, (GREEDY, SAMPLED))
    return figures


def _prompts(pair: Pair, length: int, answers: int) -> list[list[int]]:
    draw = random.Random(SEED)
    vocabulary = pair.model.config.vocab_size
    return [[draw.randrange(vocabulary) for _ in range(length)] for _ in range(answers)]


def _ours(pair: Pair, prompts: list[list[int]], limit: int) -> Iterator[int]:
    settings = Settings(max_tokens=limit, seed=SEED, profile=UNINTERRUPTED, speculation="off")
    batch = batch_generate(pair.model, pair.tokenizer, prompts, settings, batch=len(prompts))
    for index, _ in batch:
        yield index


def _theirs(
    pair: Pair,
    prompts: list[list[int]],
    limit: int,
    sampler: Callable[[mx.array], mx.array] | None,
) -> Iterator[int]:
    """Yield the index of the answer for each token; this is what mlx-lm's `batch_generate` runs."""
    generator = BatchGenerator(pair.other, stop_tokens=[], sampler=sampler)
    indices = {uid: n for n, uid in enumerate(generator.insert(prompts, [limit] * len(prompts)))}
    try:
        while responses := generator.next_generated():
            yield from (indices[response.uid] for response in responses)
    finally:
        generator.close()


def _tokens_per_second(contender: Callable[[], Iterator[int]], answers: int, count: int) -> float:
    """Return the rate of some tokens, from when every answer has one."""
    stream = contender()
    waiting = set(range(answers))
    while waiting:
        waiting.discard(next(stream))
    began = time.perf_counter()
    for _ in range(count):
        next(stream)
    elapsed = time.perf_counter() - began
    stream.close()  # type: ignore[attr-defined]
    return count / elapsed


def measure_forks(pair: Pair, effort: Effort) -> list[Figure]:
    """Return the time and memory of a fork's branches: as one batch over a shared prefix, and as
    answers one after the other, each with a copy of the cache.

    There are none if a fork does not even fit into an empty context.
    """
    times, sizes = [], []
    limit = pair.model.config.max_position_embeddings
    length = min(effort.prefix, limit - len(PROMPT) - effort.depth)
    if length < 1:
        return []
    prefix = made_up_cache(pair.model, length)
    for width in effort.widths:
        branch = FORKED | {"width": width, "depth": effort.depth}
        forking = UNINTERRUPTED.replace({"branch": branch})

        def one_by_one(width: int = width) -> None:
            caches = [copies(prefix) for _ in range(width)]
            for cache in caches:
                pair.drain(PROMPT, effort.depth, prompt_cache=cache, profile=UNINTERRUPTED)

        at_once = partial(pair.drain, PROMPT, effort.depth, profile=forking)
        runs = {
            AT_ONCE: lambda run=at_once: run(prompt_cache=copies(prefix)),
            ONE_BY_ONE: one_by_one,
        }
        memory = {name: [peak_bytes(run) / 1e6] for name, run in runs.items()}  # and a warm-up
        taken = in_turns(
            {name: partial(seconds, run) for name, run in runs.items()}, effort.repeats
        )
        case = f"{width} × {effort.depth} tokens after {length:,}"
        times += to_figures(FORK_TIME, case, "s", taken, (ONE_BY_ONE,))
        sizes += to_figures(FORK_MEMORY, case, "MB", memory, (ONE_BY_ONE,))
    return times + sizes


def copying_prompts() -> dict[str, str]:
    file = resources.files(__package__) / "copying.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"))


def measure_speculation(pair: Pair, effort: Effort) -> list[Figure]:
    """Return the figures; an answer is too long for some models.

    Answers end where they end: what came after that would repeat itself.
    """
    figures = _passes(pair, effort)
    prompts = copying_prompts() | {FREE_TEXT: FREE}
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
