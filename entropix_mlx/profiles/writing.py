"""Profiles as TOML that a person can read."""

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
from .sampler_specs import specs

CALIBRATED = ("thresholds", "adaptive")
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
    "threshold": "answers with a lower score are unsure: [abstain] says so, [answers] draws more",
    "risk": "at most this share of the others is wrong, on questions like those of the task",
    "n": "answers that the threshold was set with",
    "quantiles": "10, 25, 50, 75 and 90 % of the tokens lie below",
    "rates": "on prompts that were held out",
    "thoughts": "what texts did: mean, and 95 % from and to, in nats a token after the place",
    "worth": "forks and resampling by the place: nats an event; `kept` lie beyond the threshold",
    "gains": "on prompts that were held out, with one intervention, or all together, against none",
    "answers": "the gate: share of questions, points gained (95 % from and to), price in tokens",
    "auroc": "for 'a draw at temperature 1 is not the most probable token'; 0.5: chance",
}


def to_toml(profile: Profile, date: str) -> str:
    """Return a calibrated profile as TOML, with the fields that differ from `reference`."""
    lines = [
        "# Made by: entropix calibrate. Units: entropies in bits, varentropies in bits².",
        "",
        f'extends = "{REFERENCE}"',
        f"name = {toml_value(profile.name)}",
        f"description = {toml_value(profile.description)}",
    ]
    mine, published = asdict(profile), asdict(Profile.load())
    for section, changed in _changes(mine, published).items():
        lines += ["", f"[{section}]", *_fields(changed)]
    record = {"date": date} | profile.calibration
    lines += ["", "[calibration]", *_fields(record)]
    return "\n".join(lines) + "\n"


def _changes(mine: dict[str, Any], published: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the fields of each section that differ; calibrated sections also without any."""
    tables = {name: table for name, table in mine.items() if isinstance(table, dict)}
    del tables["calibration"], tables["samplers"]
    before = dict(published)
    for name, options in mine["samplers"].items():
        tables[f"samplers.{name}"] = options
        before[f"samplers.{name}"] = published["samplers"][name]
    found = {
        name: {key: value for key, value in table.items() if value != before[name][key]}
        for name, table in tables.items()
    }
    return {name: changed for name, changed in found.items() if changed or name in CALIBRATED}


def sampler_comments(profile: Profile) -> str:
    """Return the options of a profile's samplers with their help, as comments of a TOML file."""
    lines = ["# Options of the samplers, as they stand in this profile:"]
    for spec in specs().values():
        if spec.options:
            lines += ["#", f"# [samplers.{spec.name}]  # {spec.help}"]
        for option in spec.options.values():
            line = f"# {option.name} = {toml_value(profile.samplers[spec.name][option.name])}"
            lines.append(f"{line:28}  # {option.help}")
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
    """Make the folder of a profile's file, before the minutes that a calibration takes.

    Raises:
        ProfileError: no file can be written there.
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
        line = f"{name} = {toml_value(value)}"
        lines.append(f"{line:34}  # {COMMENTS[name]}" if name in COMMENTS else line)
    return lines


def toml_value(value: Any) -> str:
    if isinstance(value, Mapping):
        items = ", ".join(f"{_key(key)} = {toml_value(item)}" for key, item in value.items())
        return f"{{ {items} }}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(toml_value(item) for item in value)}]"
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return json.dumps(value, ensure_ascii=False)


def _key(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() else json.dumps(key)
