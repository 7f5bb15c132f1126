"""The prompts of a calibration: those of the package, or those of a file."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from ... import limits
from ...errors import PromptError

HELD_OUT_EVERY = 3
"""Every third prompt of a file is held out."""
OTHER_KINDS = {"code": "code", "arithmetic": "maths"}
"""What these prompts of the package ask for; all others ask for prose."""


@dataclass(frozen=True)
class PromptSet:
    """The prompts of a calibration."""

    fit: list[str]
    """Decisions follow from the answers to these."""
    held_out: list[str]
    """Effects are measured on the answers to these."""
    kinds: Mapping[str, str] = field(default_factory=dict)
    """Kinds of texts that prompts ask for: code, maths or prose."""


def builtin_prompts() -> PromptSet:
    file = resources.files(__package__) / "calibration_prompts.toml"
    parts = tomllib.loads(file.read_text(encoding="utf-8"))
    fit, held_out = (
        [prompt for prompts in parts[part].values() for prompt in prompts]
        for part in ("fit", "held_out")
    )
    kinds = {
        prompt: OTHER_KINDS.get(kind, "prose")
        for part in parts.values()
        for kind, prompts in part.items()
        for prompt in prompts
    }
    return PromptSet(fit, held_out, kinds)


def read_prompts(path: str | Path) -> PromptSet:
    """Return the prompts of a file, one a line; every third one is held out.

    Raises:
        PromptError: the file cannot be read, or has less than six different prompts.
    """
    try:
        lines = limits.read_text(Path(path), limits.PROMPTS_BYTES).splitlines()
    except (OSError, ValueError) as error:  # a ValueError: not UTF-8, or a NUL in the name
        raise PromptError(f"cannot read the prompts in {path}: {error}") from error
    prompts = list(dict.fromkeys(line.strip() for line in lines if line.strip()))
    if len(prompts) < (least := 2 * HELD_OUT_EVERY):
        raise PromptError(f"{path} has {len(prompts)} different prompts: give at least {least}")
    held_out = prompts[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY]
    return PromptSet([prompt for prompt in prompts if prompt not in held_out], held_out)
