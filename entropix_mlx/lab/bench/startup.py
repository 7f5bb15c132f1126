"""Measure the time from the shell to one token and back, each program in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

from ...errors import BenchError
from .records import Effort, Figure
from .timing import in_turns, seconds, to_figures

START = "start-up"
THEIRS = "mlx-lm"
OURS = "entropix"
PROMPT = "Hello"


def measure_startup(folder: Path, effort: Effort) -> list[Figure]:
    """Return the figures of both programs on one model folder, each with its own defaults.

    Raises:
        BenchError: a program failed.
    """
    options = ["--model", str(folder), "--prompt", PROMPT, "--ignore-chat-template"]
    commands = {
        THEIRS: ["mlx_lm", "generate", *options, "--max-tokens", "1"],
        OURS: ["entropix_mlx", "generate", *options, "--max-tokens", "1"],
    }
    for command in commands.values():
        _start(command)  # a warm-up: afterwards the files are in the system's cache
    timed = {
        name: lambda command=command: seconds(partial(_start, command))
        for name, command in commands.items()
    }
    repeated = in_turns(timed, effort.starts)
    return to_figures(START, "from the shell, one token", "s", repeated, (THEIRS,))


def _start(command: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, check=False
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise BenchError(f"{' '.join(command[:2])} failed: {last}")
