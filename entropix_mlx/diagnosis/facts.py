"""What there is: machine, versions, terminal, folders and models."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from .. import limits
from .._version import PACKAGES
from ..downloads.demo_model import models_folder
from ..errors import DeviceError, EntropixError, first_line
from .device import DeviceFacts, probe

MODELS, HUB, CHATS = "the demo model", "models of the hub", "chats"
VARIABLES = (
    "ENTROPIX_COMPILE", "HF_ENDPOINT", "HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "LD_PRELOAD",
    "NO_COLOR", "OPENBLAS_NUM_THREADS", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME",
)  # fmt: skip
"""Variables of the environment that change what the program does, and hold no secrets."""


@dataclass(frozen=True)
class MachineFacts:
    """Hardware and system."""

    chip: str
    cores: int
    memory: int
    system: str
    architecture: str
    """Of the Python that runs: x86_64 on Apple silicon is an emulated one."""
    nvidia: bool


@dataclass(frozen=True)
class TerminalFacts:
    """What the terminal UI would be shown on."""

    interactive: bool
    """Whether stdin and stdout are a terminal."""
    kind: str
    encoding: str
    colours: int
    columns: int | None = None
    lines: int | None = None


@dataclass(frozen=True)
class FolderFacts:
    """A folder that the program writes to."""

    holds: str
    path: str
    writable: bool
    free: int | None
    """Bytes on its disk."""


@dataclass(frozen=True)
class ModelFacts:
    """A model on this machine."""

    name: str
    nbytes: int
    precision: str | None
    fault: str | None


@dataclass(frozen=True)
class Facts:
    """All that is found out; paths below the home folder begin with ``~``."""

    machine: MachineFacts
    python: str
    versions: dict[str, str]
    broken_requirements: list[str]
    """What the package needs and is not installed so."""
    device: DeviceFacts | None
    device_fault: str | None
    terminal: TerminalFacts
    folders: list[FolderFacts]
    models: list[ModelFacts]
    models_fault: str | None
    configuration: str | None
    configuration_fault: str | None
    environment: dict[str, str] = field(default_factory=dict)


def collect(check_configuration: Callable[[], Path]) -> Facts:
    """Find all facts; nothing that goes wrong on the way ends it.

    Args:
        check_configuration: returns the path of the configuration file, or raises what is wrong.
    """
    configuration, configuration_fault = None, None
    try:
        configuration = _from_home(check_configuration())
    except EntropixError as error:
        configuration_fault = _from_home(str(error))
    device, device_fault = None, None
    try:
        device = probe()
    except DeviceError as error:
        device_fault = _from_home(str(error))
    models: list[ModelFacts] = []
    models_fault = None
    if device is not None:
        try:
            models = list(_models())
        except Exception as error:  # whatever a damaged cache makes a library raise
            models_fault = _from_home(first_line(error))
    return Facts(
        machine=_machine(),
        python=f"{platform.python_version()}, {_from_home(sys.executable)}",
        versions=_versions(),
        broken_requirements=list(_broken_requirements()),
        device=device,
        device_fault=device_fault,
        terminal=_terminal(),
        folders=list(_folders()),
        models=models,
        models_fault=models_fault,
        configuration=configuration,
        configuration_fault=configuration_fault,
        environment={
            name: _from_home(os.environ[name]) for name in VARIABLES if name in os.environ
        },
    )


def _models() -> Iterator[ModelFacts]:
    from ..checkpoints.inventory import inventory

    for model in inventory():
        fault = None if model.fault is None else _from_home(model.fault)
        yield ModelFacts(_from_home(model.name), model.nbytes, model.precision, fault)


def _machine() -> MachineFacts:
    chip, system = platform.processor(), f"{platform.system()} {platform.release()}"
    if sys.platform == "darwin":
        chip = _output_of("sysctl", "-n", "machdep.cpu.brand_string") or chip
        system = f"macOS {platform.mac_ver()[0]}"
    with suppress(OSError):  # only Linux has these files
        described = limits.read_text(Path("/proc/cpuinfo"), limits.CONFIGURATION_BYTES)
        chip = next((_value(line) for line in described.splitlines() if "model name" in line), chip)
        system += f", {platform.freedesktop_os_release()['PRETTY_NAME']}"
    return MachineFacts(
        chip=chip or platform.machine(),
        cores=os.cpu_count() or 1,
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        system=system,
        architecture=platform.machine(),
        nvidia=Path("/proc/driver/nvidia/version").exists(),
    )


def _value(line: str) -> str:
    return line.partition(":")[2].strip()


def _output_of(*command: str) -> str:
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(
            command, capture_output=True, text=True, timeout=10, check=False
        ).stdout.strip()
    return ""


def _versions() -> dict[str, str]:
    names = (*PACKAGES, "numpy", "transformers", "huggingface_hub", "llguidance", "textual")
    found = {}
    for name in names:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _broken_requirements() -> Iterator[str]:
    from packaging.requirements import Requirement

    try:
        stated = importlib.metadata.requires("entropix_mlx") or []
    except importlib.metadata.PackageNotFoundError:  # a source tree that was never installed
        return
    for requirement in map(Requirement, stated):
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        needed = f"{requirement.name}{requirement.specifier}"
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            yield f"{needed} is not installed"
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            yield f"{needed} is needed, and {version} is installed"


def _terminal() -> TerminalFacts:
    interactive = bool(sys.stdin and sys.stdin.isatty() and sys.stdout.isatty())
    kind = os.environ.get("TERM", "")
    colours = 256 if "256" in kind else 16
    if os.environ.get("COLORTERM") in ("truecolor", "24bit"):
        colours = 2**24
    if kind in ("", "dumb") or os.environ.get("NO_COLOR"):
        colours = 0
    columns, lines = None, None
    with suppress(OSError, ValueError):  # stdout is no terminal, or closed
        columns, lines = os.get_terminal_size(sys.stdout.fileno())
    encoding = getattr(sys.stdout, "encoding", None) or ""
    return TerminalFacts(interactive, kind, encoding, colours, columns, lines)


def _folders() -> Iterator[FolderFacts]:
    import platformdirs
    from huggingface_hub import constants

    places = {
        MODELS: models_folder(),
        HUB: Path(constants.HF_HUB_CACHE),
        CHATS: platformdirs.user_data_path("entropix_mlx", appauthor=False) / "chats",
    }
    for holds, path in places.items():
        existing = next(folder for folder in (path, *path.parents) if os.path.lexists(folder))
        free = None
        with suppress(OSError):
            free = shutil.disk_usage(existing).free
        writable = os.path.isdir(existing) and os.access(existing, os.W_OK | os.X_OK)
        yield FolderFacts(holds, _from_home(path), writable, free)


def _from_home(text: str | Path) -> str:
    """Return a path, or a text with paths, as it may be shown to others."""
    home = os.path.expanduser("~")
    return str(text).replace(home, "~") if len(home) > 1 else str(text)
