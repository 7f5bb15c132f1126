"""Decoding speed and peak memory against mlx-lm: one process, the same weights, alternating runs.

    python benchmarks/decode_speed.py [--model M] [--tokens 64] [--repeats 7] [--dequantize]

Ratios are medians over the repeats of (tokens/s of entropix ÷ tokens/s of the other, same repeat).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import mlx.core as mx
import mlx_lm
from mlx_lm.sample_utils import make_sampler

from entropix_mlx import chat_prompt, load, stream_generate
from entropix_mlx.convert import save

QUESTION = "Write a long story about a lighthouse keeper and the sea."


def tokens_per_second(stream: Iterator[object]) -> float:
    next(stream)
    began = time.perf_counter()
    count = sum(1 for _ in stream)
    return count / (time.perf_counter() - began)


def peak_megabytes(stream: Iterator[object]) -> float:
    mx.clear_cache()
    mx.reset_peak_memory()
    for _ in stream:
        pass
    return mx.get_peak_memory() / 1e6


def contenders(
    arguments: argparse.Namespace,
) -> tuple[str, dict[str, Callable[[], Iterator[object]]]]:
    model, tokenizer = load(arguments.model, dequantize=arguments.dequantize)
    with tempfile.TemporaryDirectory() as folder:
        save(model, tokenizer, Path(folder))
        other, other_tokenizer = mlx_lm.load(folder)
    other.update(model.parameters())  # the same arrays, so that memory can be compared too
    # Without an end-of-text token, every run has the same number of tokens.
    tokenizer._eos_token_ids = other_tokenizer._eos_token_ids = set()
    prompt = chat_prompt(tokenizer, QUESTION)
    sampled = make_sampler(temp=0.666, top_p=0.9, min_p=0.03, top_k=27)
    size = arguments.tokens

    def theirs(**options: object) -> Callable[[], Iterator[object]]:
        return lambda: mlx_lm.stream_generate(
            other, other_tokenizer, prompt, max_tokens=size, **options
        )

    def ours(**options: object) -> Callable[[], Iterator[object]]:
        return lambda: stream_generate(model, tokenizer, prompt, size, seed=0, **options)

    return "entropix", {
        "mlx-lm greedy": theirs(),
        "entropix": ours(),
        "mlx-lm sampled": theirs(sampler=sampled),
        "entropix, all layers": ours(attention_layers="all"),
        "greedy, measured": ours(sampler="greedy"),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--dequantize", action="store_true")
    arguments = parser.parse_args()
    ours, runs = contenders(arguments)
    for run in runs.values():
        for _ in run():  # warm up
            pass
    speeds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(arguments.repeats):
        for name, run in runs.items():
            speeds[name].append(tokens_per_second(run()))
    print(f"device {mx.default_device()}, MLX {mx.__version__}, {arguments.repeats} repeats")
    print(f"{'':22}{'tokens/s':>10}{'min':>8}{'max':>8}{'entropix ÷':>12}{'peak MB':>10}")
    for name, values in speeds.items():
        ratio = statistics.median(a / b for a, b in zip(speeds[ours], values, strict=True))
        print(
            f"{name:22}{statistics.median(values):10.2f}{min(values):8.2f}{max(values):8.2f}"
            f"{ratio:12.3f}{peak_megabytes(runs[name]()):10.1f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
