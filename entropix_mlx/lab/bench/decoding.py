"""Measure one answer: start-up, prefill, and decoding at several contexts."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Any, cast

from mlx_lm.models.cache import KVCache

from ...errors import BenchError
from .figures import Effort, Figure, in_turns, peak_bytes, seconds, to_figures
from .pair import (
    ALL,
    GREEDY,
    LAST,
    PROMPT,
    SAMPLED,
    UNINTERRUPTED,
    Pair,
    chain,
    copies,
    made_up_cache,
    weight_bytes,
)

START = "start-up"
THEIRS, OURS = "mlx-lm", "entropix"
DECODING, MEMORY = "decoding", "peak memory"
SECTIONS = (DECODING, MEMORY)
PREFILL, FIRST_TOKEN = "prefill", "first token"
TEXT = "The lighthouse keeper climbed the stairs, counted the ships, and wrote them down. "
FIRST = 2
"""Tokens of an answer: the first is timed; meanwhile a program may compute the second."""

Contender = Callable[[list[KVCache]], Iterator[object]]
"""Decodes after a cache, which it changes; yields one item for each token."""


def measure_startup(pair: Pair, effort: Effort) -> list[Figure]:
    """Return the time from the shell to one token and back, each program with its own defaults.

    Raises:
        BenchError: a program failed.
    """
    options = ["--model", str(pair.folder), "--prompt", "Hello", "--ignore-chat-template"]
    commands = {
        THEIRS: ["mlx_lm", "generate", *options, "--max-tokens", "1"],
        OURS: ["entropix_mlx", "generate", *options, "--max-tokens", "1"],
    }
    for command in commands.values():
        start(command)  # a warm-up: afterwards the files are in the system's cache
    timed = {name: partial(seconds, partial(start, command)) for name, command in commands.items()}
    repeated = in_turns(timed, effort.repeats)
    return to_figures(START, "from the shell, one token", "s", repeated, (THEIRS,))


def start(command: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, check=False
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise BenchError(f"{' '.join(command[:2])} failed: {last}")


def measure_decoding(pair: Pair, effort: Effort) -> list[Figure]:
    following = len(PROMPT) + effort.tokens + 1
    figures = []
    for context in effort.contexts:
        if context + following <= pair.model.config.max_position_embeddings:
            figures += _at_context(pair, effort, context)
    return sorted(figures, key=lambda figure: SECTIONS.index(figure.section))


def _at_context(pair: Pair, effort: Effort, context: int) -> list[Figure]:
    case = f"context {context:,}"
    cache = made_up_cache(pair.model, context)
    contenders = _contenders(pair, effort.tokens + 1)
    held = {name: pair.model if name in (LAST, ALL) else pair.other for name in contenders}
    peaks = {  # and a warm-up
        name: [(peak_bytes(partial(_drain, contender, cache)) + weight_bytes(held[name])) / 1e6]
        for name, contender in contenders.items()
    }
    timed = {
        name: partial(_tokens_per_second, contender, cache)
        for name, contender in contenders.items()
    }
    speeds = in_turns(timed, effort.repeats)
    return [
        *to_figures(DECODING, case, "tokens/s", speeds, (GREEDY, SAMPLED)),
        *to_figures(MEMORY, case, "MB", peaks, (GREEDY,)),
    ]


def _contenders(pair: Pair, count: int) -> dict[str, Contender]:
    def theirs(**options: Any) -> Contender:
        return lambda cache: pair.theirs(PROMPT, count, prompt_cache=cache, **options)

    def ours(**options: Any) -> Contender:
        options = {"profile": UNINTERRUPTED} | options
        return lambda cache: pair.ours(PROMPT, count, prompt_cache=cache, **options)

    return {
        GREEDY: theirs(),
        SAMPLED: theirs(sampler=chain()),
        LAST: ours(),
        ALL: ours(attention_layers="all"),
    }


def _drain(contender: Contender, cache: Sequence[KVCache]) -> None:
    for _ in contender(copies(cache)):
        pass


def _tokens_per_second(contender: Contender, cache: Sequence[KVCache]) -> float:
    stream = contender(copies(cache))
    next(stream)
    began = time.perf_counter()
    count = sum(1 for _ in stream)
    return count / (time.perf_counter() - began)


def measure_prefill(pair: Pair, effort: Effort) -> list[Figure]:
    prompt = _long_prompt(pair, effort.prompt)
    cold = in_turns(
        {
            GREEDY: lambda: _first(pair.theirs(prompt, FIRST)),
            LAST: lambda: _first(pair.ours(prompt, FIRST, profile=UNINTERRUPTED)),
        },
        effort.repeats,
    )
    rates = {name: [len(prompt) / value for value in own] for name, own in cold.items()}
    return [
        *to_figures(PREFILL, f"{len(prompt)} tokens", "tokens/s", rates, (GREEDY,)),
        *to_figures(FIRST_TOKEN, f"{len(prompt)} tokens", "s", cold, (GREEDY,)),
    ]


def _long_prompt(pair: Pair, length: int) -> list[int]:
    return list(pair.tokenizer.encode(TEXT * length)[:length])


def _first(stream: Iterator[object]) -> float:
    with closing(cast(Any, stream)):
        return seconds(lambda: next(stream))
