"""Measuring in turns: what disturbs the machine disturbs all contenders, and ratios stay true."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version

import mlx.core as mx
import numpy as np

from ...models.layout import on_cpu
from .records import Machine, Ratio, Row

Samples = dict[str, list[float]]
"""By contender: one figure a repeat."""
COPIED_BYTES = 128 * 2**20
"""Of the array that is copied to measure bandwidth: more than a processor's caches hold."""
COPIES = 3


def in_turns(contenders: Mapping[str, Callable[[], float]], repeats: int) -> Samples:
    """Run all contenders once a repeat, every other time in reverse order.

    Args:
        contenders: by name, a function that runs once and returns its figure.
        repeats: how often.
    """
    samples: Samples = {name: [] for name in contenders}
    names = list(contenders)
    for _ in range(repeats):
        for name in names:
            samples[name].append(contenders[name]())
        names.reverse()
    return samples


def to_rows(
    section: str, case: str, unit: str, samples: Samples, against: Sequence[str] = ()
) -> list[Row]:
    """Return a row for each contender, with its ratios to those in `against`."""
    return [
        Row(
            section,
            case,
            name,
            unit,
            *_spread(values),
            repeats=len(values),
            ratios=tuple(
                Ratio(other, *_spread([a / b for a, b in zip(values, samples[other], strict=True)]))
                for other in against
                if other in samples and name not in against
            ),
        )
        for name, values in samples.items()
    ]


def _spread(values: Sequence[float]) -> tuple[float, float, float]:
    return statistics.median(values), min(values), max(values)


def seconds(run: Callable[[], object]) -> float:
    """Return how long a function takes."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def peak_bytes(run: Callable[[], object]) -> int:
    """Return what a function allocates at its peak, beyond what is held before it."""
    mx.synchronize()
    mx.clear_cache()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    run()
    mx.synchronize()
    return int(mx.get_peak_memory() - before)


def copy_bandwidth() -> float:
    """Return the bytes a second, read and written, at which a large array is copied.

    MLX copies on a GPU. Its CPU backend would take most of the time to ask the system for memory,
    so NumPy copies there.
    """
    if on_cpu():
        source, target = np.ones((2, COPIED_BYTES), np.uint8)
        times = [seconds(lambda: np.copyto(target, source)) for _ in range(COPIES)]
    else:
        array = mx.ones((COPIED_BYTES // 4,))
        mx.eval(array)
        # Adding reads and writes what a copy does, and cannot be left out.
        times = [seconds(lambda: mx.eval(array + 1.0)) for _ in range(COPIES)]
    return 2 * COPIED_BYTES / min(times)


def this_machine() -> Machine:
    """Describe the machine."""
    return Machine(
        system=platform.system(),
        processor=platform.machine(),
        cores=os.cpu_count() or 1,
        device=str(mx.default_device()),
        mlx=version("mlx"),
        mlx_lm=version("mlx-lm"),
        copy_bandwidth=copy_bandwidth() / 1e9,
    )
