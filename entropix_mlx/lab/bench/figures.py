"""The records of the bench, and how they are measured.

Contenders take turns: a disturbance of the machine affects all, and ratios stay true.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import mlx.core as mx

from ..._version import installed_versions
from ...models.device import on_cpu
from ...models.memory import machine_memory

Repeats = dict[str, list[float]]
"""By contender: the numbers measured, one for each repeat."""


@dataclass(frozen=True)
class Effort:
    """The sizes that are measured. Contexts, prompts and depths are in tokens."""

    repeats: int = 3
    contexts: tuple[int, ...] = (128, 1024, 4096, 8000)
    """Tokens in the cache where decoding is measured; those a model cannot hold are left out."""
    tokens: int = 10
    """Tokens of a decoding run after its first."""
    prompt: int = 128
    widths: tuple[int, ...] = (2, 4, 5, 8)
    depth: int = 16
    prefix: int = 1024
    """Tokens before a fork, or fewer if the model cannot hold so many."""
    at_once: tuple[int, ...] = (1, 8)
    passes: tuple[int, ...] = (1, 2, 4, 8, 16)
    speculation_tokens: int = 64
    """Tokens of an answer in which the next ones are proposed."""
    speculation_samplers: tuple[str, ...] = ("greedy", "entropix")


FULL = Effort()
QUICK = Effort(
    repeats=2,
    contexts=(128, 2048),
    tokens=6,
    prompt=24,
    widths=(5,),
    depth=5,
    speculation_tokens=32,
    speculation_samplers=("greedy",),
)


@dataclass(frozen=True)
class Ratio:
    """A figure divided by another contender's, both measured in the same repeat."""

    other: str
    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Figure:
    """What one contender reached in one case: the median over the repeats, and their range."""

    section: str
    case: str
    """A context, or a number of branches or answers."""
    name: str
    unit: str
    median: float
    low: float
    high: float
    repeats: int
    ratios: tuple[Ratio, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class MachineInfo:
    """The machine that the figures are from, without a name of it or of its user."""

    system: str
    chip: str
    cores: int
    memory: int
    """Bytes."""
    device: str
    python: str
    entropix_mlx: str
    mlx: str
    mlx_lm: str


@dataclass(frozen=True)
class BenchReport:
    """All figures of a run, in the order of the table."""

    machine: MachineInfo
    weights: str
    """How most of the model's weights are stored while it runs."""
    effort: Effort
    seconds: float
    rows: tuple[Figure, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def in_turns(contenders: Mapping[str, Callable[[], float]], repeats: int) -> Repeats:
    """Run all contenders once a repeat, every other time in reverse order."""
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


def this_machine() -> MachineInfo:
    return MachineInfo(
        system=platform.platform(terse=True),
        chip=str(mx.device_info().get("device_name", platform.machine())),
        cores=os.cpu_count() or 1,
        memory=machine_memory(),
        device="cpu" if on_cpu() else "gpu",
        python=platform.python_version(),
        **{name.replace("-", "_"): number for name, number in installed_versions().items()},
    )
