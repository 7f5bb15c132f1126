"""What there is on this machine, what of it is slow or does not work, why, and what to do."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from .. import limits
from ..checkpoints.demo import models_folder
from ..checkpoints.hub import DOWNLOAD_DEMO, fitting_offers
from ..errors import first_line
from .device import DeviceFacts, probe

PACKAGES = ("entropix_mlx", "mlx", "mlx-lm", "transformers", "huggingface_hub", "textual")
DISK_BYTES = 10**9
"""Free space below this is worth a word: a small model takes as much."""
GB = 1e9


class Level(StrEnum):
    """How much a check matters."""

    GOOD = "good"
    ADVICE = "advice"
    """Something is missing, or slower than it could be."""
    FAULT = "fault"
    """Something keeps the program from working."""


@dataclass(frozen=True)
class Check:
    """One thing that was looked at, and what to do about it."""

    name: str
    found: str
    level: Level = Level.GOOD
    advice: str = ""


def diagnose(check_configuration: Callable[[], str]) -> list[Check]:
    """Look at everything; what goes wrong on the way is a fault, and ends nothing.

    Args:
        check_configuration: returns the path of the configuration file, or raises what is wrong.
    """
    sections = {
        "machine": _machine,
        "Python": _python,
        "device": lambda: check_device(probe(), memory()),
        "models": _models,
        "folders": _folders,
        "configuration": lambda: iter([Check("configuration", check_configuration())]),
        "terminal": _terminal,
    }
    checks: list[Check] = []
    for name, section in sections.items():
        try:
            checks += section()
        except Exception as error:  # a library's, in an environment that is damaged
            checks.append(Check(name, first_line(error), Level.FAULT, FAULTS.get(name, "")))
    home = os.path.expanduser("~").rstrip("/") or "~"  # nothing of it in a report for others
    return [replace(check, found=check.found.replace(home, "~")) for check in checks]


FAULTS = {
    "device": "install mlx again (on Linux mlx[cpu]); on a Mac it needs Apple silicon, and a Python"
    " that is not for Intel",
    "models": "move what is damaged out of the hub's cache",
    "configuration": "mend the file, or move it away",
}
"""What to do where a section ends with an error."""


def memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _machine() -> Iterator[Check]:
    chip, system = "", f"{platform.system()} {platform.release()}"
    with suppress(OSError):
        if sys.platform == "darwin":
            system = f"macOS {platform.mac_ver()[0]}"
            command = ("sysctl", "-n", "machdep.cpu.brand_string")
            chip = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        else:
            described = limits.read_text(Path("/proc/cpuinfo"), limits.CONFIGURATION_BYTES)
            lines = (line.partition(": ") for line in described.splitlines())
            chip = next((value for name, _, value in lines if "model name" in name), "")
    cores = f"{os.cpu_count()} cores, {memory() / GB:.1f} GB of memory"
    yield Check("machine", f"{chip.strip() or 'unnamed'} ({platform.machine()}), {cores}, {system}")


def _python() -> Iterator[Check]:
    yield Check("Python", f"{platform.python_version()}, {sys.executable}")
    versions = []
    for name in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions.append(f"{name} {importlib.metadata.version(name)}")
    yield Check("packages", ", ".join(versions))


def check_device(device: DeviceFacts, memory: int) -> Iterator[Check]:
    """Yield what MLX computes with, and what is slow with it."""
    largest = fitting_offers(memory)[-1].name
    if device.kind == "gpu":
        usable = (device.working_set or memory) / GB
        yield Check("device", f"GPU, {device.name}, {usable:.0f} GB for models: {largest} fits")
        return
    advice = "take the demo model, or one of 1 billion parameters"
    if sys.platform == "darwin":
        advice = "Metal needs macOS 14 or later, and many a virtual machine has none"
    elif Path("/proc/driver/nvidia/version").exists():
        advice = "use the NVIDIA GPU: pip install '.[cuda]' in a clone"
    unpacked = memory / 2 / 4 / GB  # half of it, by four bytes a number
    yield Check(
        "device",
        f"CPU, {device.name}: many times slower than a GPU, and in float32; models of more than"
        f" {unpacked:.1f} billion parameters stay packed, which is slower still",
        Level.ADVICE,
        advice,
    )


def _models() -> Iterator[Check]:
    from ..checkpoints.local import inventory

    models = list(inventory())
    for model in models:
        level = Level.ADVICE if model.fault else Level.GOOD
        found = f"{model.name}, {model.nbytes / GB:.2f} GB"
        yield Check("model", f"{found}: {model.fault}" if model.fault else found, level)
    if all(model.fault for model in models):
        level = Level.ADVICE if _is_writable(models_folder()) else Level.FAULT
        yield Check("models", "none that runs", level, DOWNLOAD_DEMO)


def _folders() -> Iterator[Check]:
    import platformdirs
    from huggingface_hub import constants

    chats = platformdirs.user_data_path("entropix_mlx", appauthor=False)
    for path in (models_folder(), Path(constants.HF_HUB_CACHE), chats):
        free = shutil.disk_usage(_existing(path)).free
        found = f"{path}, {free / GB:.1f} GB free"
        if not _is_writable(path):
            advice = "change its permissions, or choose others (XDG_CACHE_HOME, HF_HOME)"
            yield Check("folder", f"{found}, cannot be written", Level.ADVICE, advice)
        elif free < DISK_BYTES:
            yield Check("folder", found, Level.ADVICE, "make room before a model is downloaded")
        else:
            yield Check("folder", found)


def _existing(path: Path) -> Path:
    return next(folder for folder in (path, *path.parents) if os.path.lexists(folder))


def _is_writable(path: Path) -> bool:
    existing = _existing(path)
    return existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)


def _terminal() -> Iterator[Check]:
    kind, encoding = os.environ.get("TERM") or "dumb", sys.stdout.encoding or "unknown"
    if not (sys.stdin and sys.stdin.isatty() and sys.stdout.isatty()):
        advice = "without one, entropix chat --plain works"
        yield Check("terminal", "none: stdin or stdout is a pipe or a file", Level.ADVICE, advice)
        return
    columns, lines = shutil.get_terminal_size()
    colours = 2**24 if os.environ.get("COLORTERM") in ("truecolor", "24bit") else 16
    if "256" in kind:
        colours = max(colours, 256)
    if kind == "dumb" or os.environ.get("NO_COLOR"):
        colours = 0
    found = f"{kind}, {columns} × {lines}, {encoding}, {colours:,} colours"
    if kind == "dumb" or encoding.lower().replace("-", "") != "utf8":
        advice = "for the full screen, use one with UTF-8; entropix chat --plain works in any"
        yield Check("terminal", found, Level.ADVICE, advice)
    elif colours < 256:
        advice = "use one with 256 colours, and unset NO_COLOR: strategies have their own"
        yield Check("terminal", found, Level.ADVICE, advice)
    else:
        yield Check("terminal", found)
