"""Decoding speed and memory against mlx-lm: one process, the same weights, alternating runs.

    python benchmarks/decode_speed.py [--model M] [--tokens 64] [--repeats 7] [--no-dequantize]

The model is loaded once by each: mlx-lm loads what this package wrote of it, in the same precision.
A ratio is the median over the repeats of entropix's tokens/s divided by the other's in the same
repeat. Memory is the weights plus what a run allocates at its peak.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import mlx.core as mx
import mlx_lm
from mlx.utils import tree_reduce
from mlx_lm.sample_utils import make_sampler

from entropix_mlx import Profile, chat_prompt, load, stream_generate
from entropix_mlx.convert import save

QUESTION = "Write a long story about a lighthouse keeper and the sea."
OURS = "entropix"
# An inserted text or a fork is other work than decoding a token: benchmarks/branching.py.
UNINTERRUPTED = Profile.load().replace(
    {"think": {"max_insertions": 0}, "branch": {"max_branches": 0}}
)


class Contender(NamedTuple):
    start: Callable[[], Iterator[object]]
    weight_bytes: int


def contenders(arguments: argparse.Namespace) -> dict[str, Contender]:
    model, tokenizer = load(arguments.model, dequantize=arguments.dequantize)
    with tempfile.TemporaryDirectory() as folder:
        save(model, tokenizer, Path(folder))
        other, other_tokenizer = mlx_lm.load(folder)
    # Without an end-of-text token, every run has the same number of tokens.
    tokenizer._eos_token_ids = other_tokenizer._eos_token_ids = set()
    prompt = chat_prompt(tokenizer, QUESTION)
    size = arguments.tokens

    def theirs(**options: object) -> Contender:
        return Contender(
            lambda: mlx_lm.stream_generate(
                other, other_tokenizer, prompt, max_tokens=size, **options
            ),
            weight_bytes(other),
        )

    def ours(**options: object) -> Contender:
        return Contender(
            lambda: stream_generate(
                model, tokenizer, prompt, size, seed=0, profile=UNINTERRUPTED, **options
            ),
            weight_bytes(model),
        )

    return {
        "mlx-lm greedy": theirs(),
        OURS: ours(),
        "mlx-lm sampled": theirs(sampler=make_sampler(temp=0.666, top_p=0.9, min_p=0.03, top_k=27)),
        "entropix, all layers": ours(attention_layers="all"),
        "greedy, measured": ours(sampler="greedy"),
    }


def weight_bytes(model: object) -> int:
    return int(tree_reduce(lambda total, w: total + w.nbytes, model.parameters(), 0))


def tokens_per_second(stream: Iterator[object]) -> float:
    next(stream)
    began = time.perf_counter()
    count = sum(1 for _ in stream)
    return count / (time.perf_counter() - began)


def peak_megabytes(contender: Contender) -> float:
    mx.synchronize()
    mx.clear_cache()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    for _ in contender.start():
        pass
    return (mx.get_peak_memory() - before + contender.weight_bytes) / 1e6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--dequantize", action=argparse.BooleanOptionalAction)
    arguments = parser.parse_args()
    runs = contenders(arguments)
    memory = {name: peak_megabytes(run) for name, run in runs.items()}  # and a warm-up
    speeds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(arguments.repeats):
        for name, run in runs.items():
            speeds[name].append(tokens_per_second(run.start()))
    print(f"{mx.default_device()}, MLX {mx.__version__}, {arguments.repeats} × {arguments.tokens}")
    print(f"{'':22}{'tokens/s':>10}{'min':>8}{'max':>8}{'entropix ÷':>12}{'peak MB':>10}")
    for name, values in speeds.items():
        ratio = statistics.median(a / b for a, b in zip(speeds[OURS], values, strict=True))
        print(
            f"{name:22}{statistics.median(values):10.2f}{min(values):8.2f}{max(values):8.2f}"
            f"{ratio:12.3f}{memory[name]:10.1f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
