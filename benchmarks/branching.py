"""Measure the rollouts of one fork: as one batch over a shared prefix, and one after the other.

    python benchmarks/branching.py [--model M] [--prefix 2000] [--width 5] [--depth 16]

This is a command line over `lab/bench/forks.py`, which `entropix bench` calls too. It exists for
what the bench does not offer: a prefix, width and depth of your choice, more repeats, a check that
both ways draw the same tokens, and the memory as a share of `width` copies of the prefix's cache.

The prefix has made-up keys and values, and the order of the two ways alternates. The ratio is the
median over the repeats of the sequential time divided by the batch's time in the same repeat.
Memory is what a run allocates at its peak beyond what is held before it.
"""

from __future__ import annotations

import argparse
import statistics
import sys

import mlx.core as mx
from entropix_mlx.lab.bench.forks import (
    AT_ONCE,
    ONE_BY_ONE,
    at_once,
    make_fork,
    one_by_one,
    time_and_peak,
)

from entropix_mlx import load
from entropix_mlx.lab.bench.pair import made_up_cache


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model")
    parser.add_argument("--prefix", type=int, default=2000)
    parser.add_argument("--width", type=int, default=5)
    parser.add_argument("--depth", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    model, _ = load(arguments.model)
    prefix = made_up_cache(model, arguments.prefix)
    fork = make_fork(model, prefix, arguments.width, arguments.depth)
    same = at_once(fork) == one_by_one(fork)
    times, peaks = time_and_peak(fork, arguments.repeats)
    ratio = statistics.median(b / a for a, b in zip(times[AT_ONCE], times[ONE_BY_ONE], strict=True))
    prefix_bytes = sum(part.nbytes for layer in prefix for part in layer.keys_and_values())
    copies = arguments.width * prefix_bytes / 1e6
    print(f"{mx.default_device()}, MLX {mx.__version__}, {arguments.repeats} repeats")
    print(f"{arguments.width} × {arguments.depth} tokens after {arguments.prefix}")
    print(f"the same tokens both ways: {same}")
    for name, seconds in times.items():
        print(f"{name:14}{statistics.median(seconds):8.3f} s{peaks[name][0]:10.1f} MB at the peak")
    print(f"batch is {ratio:.2f} × as fast; its peak is {peaks[AT_ONCE][0] / copies:.1%} of")
    print(f"{arguments.width} copies of the prefix cache ({copies:.0f} MB)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
