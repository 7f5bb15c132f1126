"""Measure decoding against mlx-lm: in one process, with the same weights, in turns.

One answer is decoded by mlx-lm (greedy), by entropix's greedy sampler and by the entropix sampler;
then eight answers at once. Every repeat runs all contenders, every other time in reverse order, and
a ratio is that of two runs of the same repeat. No token ends a text, and nothing is proposed or
inserted, so each run is equally long, with a pass for each token.
"""

from __future__ import annotations

import copy
import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map
from mlx_lm.generate import BatchGenerator, generate_step
from mlx_lm.models import llama as llama_of_mlx_lm
from mlx_lm.tokenizer_utils import TokenizerWrapper

from .._version import installed_versions
from ..api.batch import batch_generate
from ..models import llama
from ..models.base import LanguageModel
from ..models.device import machine_memory, on_cpu
from ..profiles.profile import Profile
from ..settings import Settings

MLX_LM, GREEDY, ENTROPIX = "mlx-lm greedy", "entropix greedy", "entropix"
REPEATS, TOKENS, PROMPT = 5, 48, 64
"""Runs of each contender, tokens of an answer after the first, and tokens of a prompt."""
AT_ONCE = (1, 8)
SEED = 0

Run = Callable[[], Iterator[int]]
"""Yields, for each token, the number of the answer that it belongs to."""


@dataclass(frozen=True)
class Figure:
    """Tokens per second of one contender: the median over the repeats, and their range."""

    answers: int
    """At once."""
    name: str
    median: float
    low: float
    high: float
    ratio: float | None
    """The median of this figure divided by mlx-lm's of the same repeat; None for mlx-lm."""


@dataclass(frozen=True)
class BenchReport:
    """All figures of a run, and the machine, without a name of it or of its user."""

    machine: dict[str, Any]
    weights: str
    """How most of the model's weights are stored while it runs."""
    repeats: int
    tokens: int
    figures: tuple[Figure, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def bench(
    model: LanguageModel,
    tokenizer: TokenizerWrapper,
    *,
    repeats: int = REPEATS,
    tokens: int = TOKENS,
    on_progress: Callable[[str], None] = lambda what: None,
) -> BenchReport:
    """Measure the speed of decoding.

    mlx-lm's class computes with the same weights, in their usual order in memory.
    """
    figures: list[Figure] = []
    other = _of_mlx_lm(model)
    for answers in AT_ONCE:
        on_progress(f"{answers} at once" if answers > 1 else "one answer")
        prompts = _prompts(model.config.vocab_size, answers)
        limit = tokens + 4 * answers  # the first to begin is some tokens ahead of the last
        runs: dict[str, Run] = {MLX_LM: partial(_theirs, other, prompts, limit)}
        for name, sampler in ((GREEDY, "greedy"), (ENTROPIX, "entropix")):
            runs[name] = partial(_ours, model, tokenizer, prompts, limit, sampler)
        timed = {name: partial(_speed, run, answers, tokens) for name, run in runs.items()}
        figures += to_figures(answers, in_turns(timed, repeats))
    return BenchReport(this_machine(), model.precision, repeats, tokens, tuple(figures))


def in_turns(runs: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    """Run all contenders once a repeat, every other time in reverse order, after a warm-up."""
    names = list(runs)
    found: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(repeats + 1):
        for name in names:
            found[name].append(runs[name]())
        names.reverse()
    return {name: figures[1:] for name, figures in found.items()}


def to_figures(answers: int, repeated: Mapping[str, Sequence[float]]) -> Iterator[Figure]:
    """Yield the figure of each contender, with its ratio to mlx-lm's."""
    for name, speeds in repeated.items():
        pairs = zip(speeds, repeated[MLX_LM], strict=True)
        ratio = None if name == MLX_LM else statistics.median(own / other for own, other in pairs)
        yield Figure(answers, name, statistics.median(speeds), min(speeds), max(speeds), ratio)


def this_machine() -> dict[str, Any]:
    return {
        "system": platform.platform(terse=True),
        "chip": str(mx.device_info().get("device_name", platform.machine())),
        "cores": os.cpu_count() or 1,
        "memory": machine_memory(),
        "device": "cpu" if on_cpu() else "gpu",
        "python": platform.python_version(),
        **{name.replace("-", "_"): number for name, number in installed_versions().items()},
    }


def _of_mlx_lm(model: LanguageModel) -> nn.Module:
    """Return mlx-lm's class of a model, with weights in their usual order in memory."""
    inner = model.inner
    if not isinstance(inner, llama.Model):
        return inner
    own: nn.Module = llama_of_mlx_lm.Model(llama_of_mlx_lm.ModelArgs.from_dict(vars(inner.args)))
    packed = {name: part for name, part in inner.named_modules() if "scales" in part}

    def packing(name: str, _: nn.Module) -> bool | dict[str, int]:
        part = packed.get(name)
        return {"group_size": part.group_size, "bits": part.bits} if part else False

    nn.quantize(own, class_predicate=packing)
    weights = tree_map(mx.contiguous, inner.parameters())
    own.update(weights)
    mx.eval(own.parameters())
    return own


def _prompts(vocabulary: int, answers: int) -> list[list[int]]:
    draw = random.Random(SEED)
    return [[draw.randrange(vocabulary) for _ in range(PROMPT)] for _ in range(answers)]


def _theirs(other: Any, prompts: list[list[int]], limit: int) -> Iterator[int]:
    if len(prompts) == 1:  # what mlx_lm.generate runs
        yield from (0 for _ in generate_step(mx.array(prompts[0]), other, max_tokens=limit))
        return
    generator = BatchGenerator(other, stop_tokens=[])
    numbers = {uid: n for n, uid in enumerate(generator.insert(prompts, [limit] * len(prompts)))}
    try:
        while responses := generator.next_generated():
            yield from (numbers[response.uid] for response in responses)
    finally:
        generator.close()


def _ours(
    model: LanguageModel,
    tokenizer: TokenizerWrapper,
    prompts: list[list[int]],
    limit: int,
    sampler: str,
) -> Iterator[int]:
    endless = copy.copy(tokenizer)
    endless._eos_token_ids = set()
    off = {"think": {"max_insertions": 0}, "branch": {"max_branches": 0}}
    profile = Profile.load().replace(off)
    settings = Settings(limit, sampler, profile, seed=SEED, speculation="off")
    batch = batch_generate(model, endless, prompts, settings, batch=len(prompts))
    yield from (number for number, _ in batch)


def _speed(run: Run, answers: int, tokens: int) -> float:
    """Return the tokens per second, from when every answer has one."""
    stream = run()
    waiting = set(range(answers))
    while waiting:
        waiting.discard(next(stream))
    began = time.perf_counter()
    for _ in range(answers * tokens):
        next(stream)
    elapsed = time.perf_counter() - began
    stream.close()  # type: ignore[attr-defined]
    return answers * tokens / elapsed
