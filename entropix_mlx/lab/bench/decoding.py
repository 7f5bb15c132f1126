"""Measure one answer: start-up, prefill, and decoding at several contexts."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, cast

from mlx_lm.models.cache import KVCache

from ...errors import BenchError
from ...models.llama.model import Model
from ...profiles.profile import REFERENCE
from ...step import Origin, Step
from .figures import Effort, Figure, copy_bandwidth, in_turns, peak_bytes, seconds, to_figures
from .pair import (
    ALL,
    GREEDY,
    INTERVENING,
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
DECODING, MEMORY, BANDWIDTH = "decoding", "peak memory", "memory bandwidth"
SECTIONS = (DECODING, MEMORY, BANDWIDTH)
COPY = "copy"
PREFILL, FIRST_TOKEN = "prefill", "first token"
TEXT = "The lighthouse keeper climbed the stairs, counted the ships, and wrote them down. "
FIRST = 2
"""Tokens asked for: the first is timed; while it is read, a program may compute the second."""

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
    """Run a module of Python in a process of its own.

    Raises:
        BenchError: it failed.
    """
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
    speeds = in_turns(timed | {COPY: copy_bandwidth}, effort.repeats)
    most = max(speeds.pop(COPY))
    read = read_bytes(pair.model, cache)
    shares = {name: [100 * speed * read / most for speed in own] for name, own in speeds.items()}
    return [
        *to_figures(DECODING, case, "tokens/s", speeds, (GREEDY, SAMPLED)),
        _with_interventions(pair, effort, cache, case),
        *to_figures(MEMORY, case, "MB", peaks, (GREEDY,)),
        *to_figures(BANDWIDTH, case, "% of a copy's", shares),
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


def _with_interventions(pair: Pair, effort: Effort, cache: list[KVCache], case: str) -> Figure:
    """Return the figure with forks and insertions, measured in turns with greedy decoding.

    The rate is that of the whole run, since all tokens of a fork's winner come at once.
    """
    count = effort.tokens + 1
    steps: list[Step] = []

    def intervening(grown: list[KVCache]) -> Iterator[object]:
        steps.clear()
        for step in pair.ours(PROMPT, count, prompt_cache=grown, profile=REFERENCE):
            steps.append(step)
            yield step

    contenders: dict[str, Contender] = {
        GREEDY: _contenders(pair, count)[GREEDY],
        INTERVENING: intervening,
    }
    timed = {
        name: lambda contender=contender: count / seconds(partial(_drain, contender, cache))
        for name, contender in contenders.items()
    }
    speeds = in_turns(timed, effort.repeats)
    begun = Counter(step.origin for step in steps if step.rolled_back)
    note = f"forks: {begun[Origin.BRANCH]}, insertions: {begun[Origin.INSERTED]}"
    figure = to_figures(DECODING, case, "tokens/s", speeds, (GREEDY,))[-1]
    return replace(figure, note=f"{note}, in {len(steps)} tokens")


def _drain(contender: Contender, cache: Sequence[KVCache]) -> None:
    for _ in contender(copies(cache)):
        pass


def _tokens_per_second(contender: Contender, cache: Sequence[KVCache]) -> float:
    stream = contender(copies(cache))
    next(stream)
    began = time.perf_counter()
    count = sum(1 for _ in stream)
    return count / (time.perf_counter() - began)


def read_bytes(model: Model, cache: Sequence[KVCache]) -> int:
    """Return the bytes that a step must read: the weights and the cached keys and values.

    If the embedding is not also the output head, a step reads only one row of it, which is not
    counted.
    """
    weights = weight_bytes(model)
    if not model.config.tie_word_embeddings:
        weights -= weight_bytes(model.model.embed_tokens)
    cached: int = sum(array.nbytes for layer in cache for array in layer.keys_and_values())
    return weights + cached


def measure_prefill(pair: Pair, effort: Effort) -> list[Figure]:
    """Return the prefill and the time to the first token: from scratch, and after a cached text."""
    prompt = _long_prompt(pair, effort.prompt)
    cold = in_turns(
        {
            GREEDY: lambda: _first(pair.theirs(prompt, FIRST)),
            LAST: lambda: _first(pair.ours(prompt, FIRST, profile=UNINTERRUPTED)),
        },
        effort.repeats,
    )
    rates = {name: [len(prompt) / value for value in own] for name, own in cold.items()}
    history = min(effort.history, pair.model.config.max_position_embeddings // 2)
    cache = made_up_cache(pair.model, history)
    question = _long_prompt(pair, effort.question)
    ours = partial(pair.ours, question, FIRST, profile=UNINTERRUPTED)
    warm = in_turns(
        {
            GREEDY: lambda: _first(pair.theirs(question, FIRST, prompt_cache=copies(cache))),
            LAST: lambda: _first(ours(prompt_cache=copies(cache))),
        },
        effort.repeats,
    )
    after = f"{len(question)} tokens after {history:,} cached"
    return [
        *to_figures(PREFILL, f"{len(prompt)} tokens", "tokens/s", rates, (GREEDY,)),
        *to_figures(FIRST_TOKEN, f"{len(prompt)} tokens, cold", "s", cold, (GREEDY,)),
        *to_figures(FIRST_TOKEN, after, "s", warm, (GREEDY,)),
    ]


def _long_prompt(pair: Pair, length: int) -> list[int]:
    return list(pair.tokenizer.encode(TEXT * length)[:length])


def _first(stream: Iterator[object]) -> float:
    with closing(cast(Any, stream)):
        return seconds(lambda: next(stream))
