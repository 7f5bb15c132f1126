"""Measure contenders in turns: a disturbance of the machine affects all, and ratios stay true."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version

import mlx.core as mx
import numpy as np

from ...models.llama.weight_layout import on_cpu
from .records import Figure, Machine, Ratio

Repeats = dict[str, list[float]]
"""By contender: the numbers measured, one for each repeat."""
COPIED_BYTES = 128 * 2**20
"""Size of the array that is copied to measure bandwidth: a processor's caches hold less."""
COPIES = 3


def in_turns(contenders: Mapping[str, Callable[[], float]], repeats: int) -> Repeats:
    """Run all contenders once a repeat, every other time in reverse order.

    Args:
        contenders: by name, a function that runs once and returns the number measured.
        repeats: how often.
    """
    repeated: Repeats = {name: [] for name in contenders}
    names = list(contenders)
    for _ in range(repeats):
        for name in names:
            repeated[name].append(contenders[name]())
        names.reverse()
    return repeated


def to_figures(
    section: str, case: str, unit: str, repeated: Repeats, against: Sequence[str] = ()
) -> list[Figure]:
    """Return the figure of each contender, with its ratios to those in `against`."""
    return [
        Figure(
            section,
            case,
            name,
            unit,
            *_spread(values),
            repeats=len(values),
            ratios=tuple(
                Ratio(
                    other, *_spread([a / b for a, b in zip(values, repeated[other], strict=True)])
                )
                for other in against
                if other in repeated and name not in against
            ),
        )
        for name, values in repeated.items()
    ]


def _spread(values: Sequence[float]) -> tuple[float, float, float]:
    return statistics.median(values), min(values), max(values)


def seconds(run: Callable[[], object]) -> float:
    """Return how many seconds a function takes."""
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

    On a GPU, MLX makes the copy. On a CPU, NumPy does: MLX would allocate the copy each time, and
    measure mostly that.
    """
    if on_cpu():
        source, target = np.ones((2, COPIED_BYTES), np.uint8)
        times = [seconds(lambda: np.copyto(target, source)) for _ in range(COPIES)]
    else:
        array = mx.ones((COPIED_BYTES // 4,))
        mx.eval(array)
        # `array + 1` moves the same bytes as a copy, and is not optimised away.
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
