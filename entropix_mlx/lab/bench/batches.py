"""Measure what shares passes: many answers at once, and the branches of a fork."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import mlx.core as mx
from mlx_lm.generate import BatchGenerator

from ...api.batch import batch_generate
from ...settings import Settings
from .figures import Effort, Figure, Repeats, in_turns, peak_bytes, seconds, to_figures
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
FORKED = {"trigger": "chance", "trigger_at": 1.0, "max_branches": 1, "halve_from": 0}
"""Fields of a profile's `branch` with which an answer begins with a fork of full depth."""


def measure_many(pair: Pair, effort: Effort) -> list[Figure]:
    """Return the tokens per second of several answers together; too long for some models.

    Both programs compute the prompts first. The clock runs from when every answer has a token until
    as many tokens have come as the effort has for each answer, so all passes that are counted are
    full.
    """
    figures: list[Figure] = []
    single: Repeats = {}
    for rows in effort.rows:
        # The first answer to begin is some tokens ahead of the last.
        limit = effort.tokens + 4 * rows
        if effort.prompt + limit > pair.model.config.max_position_embeddings:
            continue
        prompts = _prompts(pair, effort.prompt, rows)
        contenders = {
            GREEDY: partial(_theirs, pair, prompts, limit, None),
            SAMPLED: partial(_theirs, pair, prompts, limit, chain()),
            LAST: partial(_ours, pair, prompts, limit),
        }
        timed = {
            name: partial(_tokens_per_second, contender, rows, rows * effort.tokens)
            for name, contender in contenders.items()
        }
        for contender in timed.values():
            contender()  # a warm-up
        speeds = in_turns(timed, effort.repeats)
        single = single or (speeds if rows == 1 else {})
        case = f"{rows} at once, prompts of {effort.prompt}"
        measured = to_figures(MANY, case, "tokens/s", speeds, (GREEDY, SAMPLED))
        figures += [_against_one(figure, single, rows) for figure in measured]
    return figures


def _against_one(figure: Figure, single: Repeats, rows: int) -> Figure:
    """Note how many times as fast as one answer alone all of them are."""
    if rows == 1 or figure.name not in single:
        return figure
    alone = sorted(single[figure.name])[len(single[figure.name]) // 2]
    return replace(figure, note=f"{figure.median / alone:.2f} × one answer")


def _prompts(pair: Pair, length: int, rows: int) -> list[list[int]]:
    draw = random.Random(SEED)
    vocabulary = pair.model.config.vocab_size
    return [[draw.randrange(vocabulary) for _ in range(length)] for _ in range(rows)]


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


def _tokens_per_second(contender: Callable[[], Iterator[int]], rows: int, count: int) -> float:
    """Return the rate of some tokens, from when every answer has one."""
    stream = contender()
    waiting = set(range(rows))
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
