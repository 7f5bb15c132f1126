"""Rollouts of a fork as one batch over a shared prefix, against one rollout after the other.

    python benchmarks/branching.py [--model M] [--prefix 2000] [--width 5] [--depth 16]

Both use the same engine, seed and cache; the order alternates. The ratio is the median over the
repeats of the sequential time divided by the batch's time in the same repeat. Memory is what a run
allocates at its peak beyond what is held before it, as a share of `width` copies of the prefix
cache.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import mlx.core as mx

from entropix_mlx import load
from entropix_mlx.branching import Draft, roll_out
from entropix_mlx.engine import Pending, TextEngine, with_tokens
from entropix_mlx.policy import make_policy

PARAGRAPH = "The lighthouse keeper climbed the stairs, counted the ships, and wrote them down. "


class Fork(NamedTuple):
    engine: TextEngine
    pending: Pending
    width: int
    depth: int

    def drafts(self) -> list[Draft]:
        (reading,) = self.engine.read(self.pending)
        tokens = self.engine.first_tokens(self.pending, self.width)
        return [Draft(r, lambda _: None) for r in with_tokens(self.pending, reading, tokens)]


def at_once(fork: Fork) -> list[list[int]]:
    start = fork.engine.position
    drafts = fork.drafts()
    branches = roll_out(fork.engine, drafts, fork.depth, lambda: False, pipelined=True)
    branches.commit(0, fork.depth - 1)
    fork.engine.shorten(start)
    return [draft.tokens for draft in drafts]


def one_by_one(fork: Fork) -> list[list[int]]:
    engine = fork.engine
    start = engine.position
    rollouts = []
    for draft in fork.drafts():
        pending = engine.queue(mx.array(draft.tokens), may_think=False)
        for length in range(1, fork.depth):
            last = length + 1 == fork.depth
            ahead = None if last else engine.queue(pending.drawn.token, may_think=False)
            (reading,) = engine.read(pending)
            draft.grow(reading)
            pending = ahead or pending
        engine.shorten(start)
        rollouts.append(draft.tokens)
    return rollouts


def make_fork(arguments: argparse.Namespace) -> tuple[Fork, int]:
    model, tokenizer = load(arguments.model)
    tokenizer._eos_token_ids = set()
    tokens = tokenizer.encode(PARAGRAPH * arguments.prefix)[: arguments.prefix]
    cache = model.make_cache()
    engine = TextEngine(model, cache, make_policy("entropix"), seed=0)
    engine.prefill(tokens[:-1], lambda done, total: None, lambda: False)
    pending = engine.queue(mx.array(tokens[-1:]), may_think=False)
    engine.read(pending)
    used = sum(part.nbytes for layer in cache for part in layer.keys_and_values())
    return Fork(engine, pending, arguments.width, arguments.depth), used


def measure(run: Callable[[Fork], object], fork: Fork) -> tuple[float, int]:
    mx.synchronize()
    mx.clear_cache()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    began = time.perf_counter()
    run(fork)
    mx.synchronize()
    return time.perf_counter() - began, mx.get_peak_memory() - before


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model")
    parser.add_argument("--prefix", type=int, default=2000)
    parser.add_argument("--width", type=int, default=5)
    parser.add_argument("--depth", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    fork, prefix_bytes = make_fork(arguments)
    same = at_once(fork) == one_by_one(fork)  # and a warm-up
    times: dict[Callable[[Fork], object], list[float]] = {at_once: [], one_by_one: []}
    peaks = dict.fromkeys(times, 0)
    for _ in range(arguments.repeats):
        for run, seconds in times.items():
            elapsed, peak = measure(run, fork)
            seconds.append(elapsed)
            peaks[run] = max(peaks[run], peak)
    ratio = statistics.median(b / a for a, b in zip(times[at_once], times[one_by_one], strict=True))
    copies = arguments.width * prefix_bytes
    print(f"{mx.default_device()}, MLX {mx.__version__}, {arguments.repeats} repeats")
    print(f"{arguments.width} × {arguments.depth} tokens after {arguments.prefix}")
    print(f"the same tokens both ways: {same}")
    for run, name in ((at_once, "as one batch"), (one_by_one, "one by one")):
        seconds = statistics.median(times[run])
        print(f"{name:14}{seconds:8.3f} s{peaks[run] / 1e6:10.1f} MB at the peak")
    print(f"batch is {ratio:.2f} × as fast; its peak is {peaks[at_once] / copies:.1%} of")
    print(f"{arguments.width} copies of the prefix cache ({copies / 1e6:.0f} MB)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
