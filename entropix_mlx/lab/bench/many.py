"""Measure many answers at once: tokens per second of all of them together.

Both programs compute the prompts first. The clock runs from when every answer has a token until as
many tokens have come as the effort asks of each answer, so no pass that is counted lacks a row.
"""

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
from .pair import GREEDY, LAST, SAMPLED, SEED, UNINTERRUPTED, Pair, chain
from .records import Effort, Figure
from .timing import Repeats, in_turns, to_figures

MANY = "many answers at once"


def measure_many(pair: Pair, effort: Effort) -> list[Figure]:
    """Return the figures for each number of answers; prompts are too long for some models."""
    figures: list[Figure] = []
    single: Repeats = {}
    for rows in effort.rows:
        limit = _limit(effort, rows)
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
        speeds = in_turns(timed, effort.batch_repeats)
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


def _limit(effort: Effort, rows: int) -> int:
    """Return the most tokens of an answer; the first to begin is some tokens ahead of the last."""
    return effort.tokens + 4 * rows


def _prompts(pair: Pair, length: int, rows: int) -> list[list[int]]:
    draw = random.Random(SEED)
    vocabulary = pair.model.config.vocab_size
    return [[draw.randrange(vocabulary) for _ in range(length)] for _ in range(rows)]


def _ours(pair: Pair, prompts: list[list[int]], limit: int) -> Iterator[int]:
    """Yield the index of the answer for each token."""
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
