"""Writing a calibrated profile as a TOML file that people can read."""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..errors import ProfileError
from ..files import write_whole, writing
from .profile import REFERENCE, Profile

COMMENTS = {
    # Spaces line the conditions of a strategy up below its name.
    "low_entropy": "argmax: H below, and",
    "low_varentropy": "        V below",
    "think_min_entropy": "think: H above, and",
    "think_max_varentropy": "       V below",
    "branch_max_entropy": "branch: H below, and",
    "branch_min_varentropy": "        V above, and",
    "branch_max_margin": "        margin below",
    "resample_min_entropy": "resample: H above, and",
    "resample_min_varentropy": "          V above",
    "temperature_logits": "T' = T (1 + this · (H + V) + …)",
    "temperature_attention": "… + this · (attention entropy + varentropy)",
    "min_p_slope": "min_p' = min_p (1 − this · (H + V))",
    "quantiles": "10, 25, 50, 75 and 90 % of the tokens lie below",
    "rates": "on prompts that were held out",
    "auroc": "for 'a draw at temperature 1 is not the most probable token'; 0.5: tells nothing",
}


def to_toml(profile: Profile, date: str) -> str:
    """Return the TOML text of a calibrated profile.

    Its thresholds and adaptive parameters are stated only where they differ from `reference`; all
    other sections are those of `reference`.
    """
    lines = [
        "# Made by: entropix calibrate. Units: entropies in bits, varentropies in bits².",
        "",
        f'extends = "{REFERENCE}"',
        f"name = {_value(profile.name)}",
        f"description = {_value(profile.description)}",
    ]
    mine, published = asdict(profile), asdict(Profile.load())
    for section in ("thresholds", "adaptive"):
        changed = {k: v for k, v in mine[section].items() if v != published[section][k]}
        lines += ["", f"[{section}]", *_fields(changed)]
    record = {"date": date} | profile.calibration
    lines += ["", "[calibration]", *_fields(record)]
    return "\n".join(lines) + "\n"


def write_profile(profile: Profile, path: Path, date: str) -> None:
    """Write a calibrated profile; if that is interrupted, an older file stays as it was.

    Raises:
        ProfileError: the file cannot be written.
    """
    prepare(path)
    with writing(path, ProfileError):
        write_whole(path, to_toml(profile, date))


def prepare(path: Path) -> None:
    """Make the folder of a profile's file and check that a file can be written there.

    This comes before the minutes that a calibration takes.

    Raises:
        ProfileError: it cannot.
    """
    with writing(path, ProfileError):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not os.access(path.parent, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _fields(values: Mapping[str, Any]) -> list[str]:
    lines = []
    for name, value in values.items():
        line = f"{name} = {_value(value)}"
        lines.append(f"{line:34}  # {COMMENTS[name]}" if name in COMMENTS else line)
    return lines


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        items = ", ".join(f"{_key(key)} = {_value(item)}" for key, item in value.items())
        return f"{{ {items} }}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_value(item) for item in value)}]"
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return json.dumps(value, ensure_ascii=False)


def _key(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() else json.dumps(key)
