"""What the facts mean: what will be slow or will not work, why, and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from ..downloads.offers import DOWNLOAD_DEMO, fitting_offers
from .device import DeviceFacts
from .facts import MODELS, Facts

DISK_BYTES = 10**9
"""Free space below this is worth a word: a small model takes as much."""
PARAMETER_BYTES = 4
"""Of a number in float32, to which a CPU unpacks weights if they take half of its memory at
most."""


class Level(StrEnum):
    """How much a finding matters."""

    GOOD = "good"
    ADVICE = "advice"
    """Something is slower than it could be, or missing."""
    FAULT = "fault"
    """Something keeps the program from working."""


@dataclass(frozen=True)
class Finding:
    """What is well or not, why, and what to do."""

    level: Level
    text: str
    advice: str = ""


def findings(facts: Facts) -> list[Finding]:
    """Return what the facts mean, in the order in which a user should mend it."""
    found = [
        *_installation(facts),
        *_configuration(facts),
        *_device(facts),
        *_models(facts),
        *_folders(facts),
        *_terminal(facts),
    ]
    order = (Level.FAULT, Level.ADVICE, Level.GOOD)
    return sorted(found, key=lambda finding: order.index(finding.level))


def _installation(facts: Facts) -> Iterator[Finding]:
    for broken in facts.broken_requirements:
        yield Finding(Level.FAULT, broken, "install entropix-mlx again, with its dependencies")
    if facts.device_fault is None:
        return
    emulated = facts.machine.system.startswith("macOS") and facts.machine.architecture != "arm64"
    yield Finding(
        Level.FAULT,
        f"MLX does not work: {facts.device_fault}",
        "MLX needs Apple silicon and a Python for it (arm64); this one is for Intel"
        if emulated
        else "install mlx again, on Linux as mlx[cpu]",
    )


def _configuration(facts: Facts) -> Iterator[Finding]:
    if facts.configuration_fault:
        advice = "mend the file, or move it away"
        yield Finding(Level.FAULT, facts.configuration_fault, advice)


def _device(facts: Facts) -> Iterator[Finding]:
    device = facts.device
    if device is None:
        return
    memory = device.working_set or facts.machine.memory
    largest = fitting_offers(facts.machine.memory)[-1].name
    if device.kind == "gpu":
        text = f"models run on the GPU, in up to {memory / 1e9:.0f} GB of memory"
        yield Finding(Level.GOOD, f"{text}: {largest} fits")
        return
    billions = facts.machine.memory / 2 / PARAMETER_BYTES / 1e9
    yield Finding(
        Level.ADVICE,
        "models run on the CPU, many times slower than on a GPU, and in float32: those of up to"
        f" {billions:.1f} billion parameters are unpacked, larger ones are slower still",
        _for_cpu(facts),
    )
    yield from _blas(device)


def _for_cpu(facts: Facts) -> str:
    if facts.machine.system.startswith("macOS"):
        return "Metal needs macOS 14 or later, and a virtual machine may have none"
    if facts.machine.nvidia:
        return "there is an NVIDIA GPU: pip install 'entropix-mlx[cuda]'"
    return "take the demo model, or one of 1 billion parameters"


def _blas(device: DeviceFacts) -> Iterator[Finding]:
    if device.blas == "fast":
        return
    libraries = sorted(Path("/usr/lib").glob("*/openblas-pthread/libblas.so.3"))
    yield Finding(
        Level.ADVICE,
        f"prompts are read slowly: MLX's BLAS is the reference ({device.float32:.0f} GFLOP/s)",
        f"start with LD_PRELOAD={libraries[0]}"
        if libraries
        else "install OpenBLAS (on Debian and Ubuntu libopenblas0-pthread), and run this again",
    )


def _models(facts: Facts) -> Iterator[Finding]:
    if facts.models_fault:
        text = f"models cannot be listed: {facts.models_fault}"
        yield Finding(Level.FAULT, text, "move what is damaged out of the hub's cache")
    runs = [model for model in facts.models if model.fault is None]
    if runs:
        yield Finding(Level.GOOD, f"models that run here: {len(runs)} of {len(facts.models)}")
    elif facts.device is not None:
        can_download = all(folder.writable for folder in facts.folders if folder.holds == MODELS)
        level = Level.ADVICE if can_download else Level.FAULT
        yield Finding(level, "there is no model yet", DOWNLOAD_DEMO)


def _folders(facts: Facts) -> Iterator[Finding]:
    for folder in facts.folders:
        if not folder.writable:
            text = f"{folder.path} cannot be written ({folder.holds})"
            yield Finding(Level.ADVICE, text, "change its permissions, or choose another folder")
        elif folder.free is not None and folder.free < DISK_BYTES:
            text = f"{folder.path} has {folder.free / 1e9:.1f} GB left on its disk"
            yield Finding(Level.ADVICE, text, "make room before a model is downloaded")
    if facts.environment.get("HF_HUB_OFFLINE", "0").lower() in ("1", "on", "yes", "true"):
        text = "HF_HUB_OFFLINE forbids to download models of the hub"
        yield Finding(Level.ADVICE, text, "unset it to download one")


def _terminal(facts: Facts) -> Iterator[Finding]:
    terminal = facts.terminal
    if not terminal.interactive:
        text = "there is no terminal here: stdin or stdout is a pipe or a file"
        yield Finding(Level.ADVICE, text, "entropix chat --plain works without one")
    elif terminal.kind in ("", "dumb") or terminal.encoding.lower().replace("-", "") != "utf8":
        text = (
            f"this terminal ({terminal.kind or 'unnamed'}, {terminal.encoding}) has no full screen"
        )
        advice = "use another one with UTF-8, or entropix chat --plain"
        yield Finding(Level.ADVICE, text, advice)
    elif terminal.colours < 256:
        text = f"the terminal shows {terminal.colours} colours: strategies are hard to tell apart"
        yield Finding(Level.ADVICE, text, "use one with 256 colours; unset NO_COLOR if it is set")
