"""A profile: every threshold, coefficient and option of the samplers, read from TOML.

`sections.py` gives the numbers names, types and ranges. A file may state only what it changes: the
rest comes from the profile named by its ``extends`` key, `reference` by default.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterator, Mapping
from dataclasses import field
from importlib import resources
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from .. import limits
from ..errors import ConfigurationError, ProfileError, brief
from ..files import expanded
from ..models.config import ModelShape, fingerprint
from ..records import explained, parse_toml
from . import sampler_specs
from .fields import overlaid, unknown
from .sections import (
    FIXED,
    Abstain,
    Adaptive,
    AnswersRule,
    Base,
    Baselines,
    BranchStrategy,
    PositionScore,
    Resample,
    RetrievalRule,
    Targets,
    Think,
    Thresholds,
)

REFERENCE = "reference"


@dataclass(frozen=True, config=FIXED)
class Profile:
    """All numbers that samplers and interventions use. `Profile.load` reads and checks one."""

    name: str
    description: str
    base: Base
    thresholds: Thresholds
    think: Think
    notes: RetrievalRule
    branch: BranchStrategy
    resample: Resample
    adaptive: Adaptive
    position_score: PositionScore
    baselines: Baselines
    targets: Targets
    abstain: Abstain
    answers: AnswersRule
    samplers: dict[str, dict[str, Any]]
    """The options of each sampler's own, by its name: ``samplers["top_n_sigma"]["n_sigma"]``."""
    calibration: dict[str, Any] = field(default_factory=dict)
    """What the thresholds were solved from; empty for a profile written by hand."""

    @classmethod
    def load(cls, profile: str | Path | Profile = REFERENCE) -> Profile:
        """Return the built-in profile of that name, the one in that TOML file, or the one given.

        Raises:
            ProfileError: there is none, it is not TOML, or a field is unknown or out of range.
        """
        if isinstance(profile, Profile):
            return profile
        return _builtin(str(profile)) if str(profile) in builtin_names() else _read(profile, [])

    def replace(self, changes: Mapping[str, Any], source: str = "profile") -> Profile:
        """Return a profile with some fields changed: ``{"thresholds": {"low_entropy": 0.2}}``.

        Raises:
            ProfileError: a field is unknown or out of range; the message begins with `source`.
        """
        return _build(overlaid(dataclasses.asdict(self), changes), source)


def differences(first: Profile, second: Profile) -> dict[str, tuple[Any, Any]]:
    """Return the numbers that differ, by dotted name: ``"thresholds.low_entropy": (0.1, 0.2)``."""
    one, other = _flat(first), _flat(second)
    return {name: (one[name], other[name]) for name in one if one[name] != other[name]}


def _flat(profile: Profile) -> dict[str, Any]:
    tables = dataclasses.asdict(profile)
    tables |= {f"samplers.{name}": options for name, options in tables.pop("samplers").items()}
    return {
        f"{section}.{name}": value
        for section, content in tables.items()
        if isinstance(content, dict) and section != "calibration"
        for name, value in content.items()
    }


@functools.cache
def builtin_names() -> tuple[str, ...]:
    names = (file.name for file in resources.files("entropix_mlx.profiles").iterdir())
    tables = (name for name in names if name.endswith(".toml") and name != sampler_specs.FILE)
    return tuple(sorted(name.removesuffix(".toml") for name in tables))


def read_source(name: str | Path) -> tuple[str, str]:
    """Return where a profile stands, for messages, and its TOML text, which is not yet checked.

    Raises:
        ProfileError: there is no profile of that name, and no such file.
    """
    if str(name) in builtin_names():
        file = resources.files("entropix_mlx.profiles") / f"{name}.toml"
        return f"profile {name}", file.read_text(encoding="utf-8")
    try:
        return str(name), limits.read_text(Path(name), limits.PROFILE_BYTES)
    except (OSError, ValueError) as error:  # a ValueError: not UTF-8, or a NUL in the name
        raise ProfileError(
            f"no profile {brief(str(name))}: give a TOML file, or one of"
            f" {', '.join(builtin_names())} ({getattr(error, 'strerror', None) or error})"
        ) from error


@functools.cache
def _builtin(name: str) -> Profile:
    return _read(name, [])


def _read(profile: str | Path, extending: list[str]) -> Profile:
    """Read a profile; `extending` lists those that are being read because they extend it."""
    source, text = read_source(profile)
    data = _parse(text, source)
    if str(profile) == REFERENCE:
        return _build(data | {"samplers": {}}, source)
    parent = data.pop("extends", REFERENCE)
    if isinstance(parent, str) and parent not in builtin_names():
        parent = str(Path(profile).parent / parent)
    extending = [*extending, str(profile)]
    if not isinstance(parent, str) or parent in extending:
        raise ProfileError(
            f"{source}: extends must name another profile, which does not extend this one:"
            f" one of {', '.join(builtin_names())}, or a TOML file beside this one"
        )
    data.setdefault("name", Path(profile).stem)
    return _read(parent, extending).replace(data, source=source)


def _parse(text: str, source: str) -> dict[str, Any]:
    try:
        return parse_toml(text)
    except ValueError as error:  # also a whole number of more digits than Python reads
        raise ProfileError(f"{source}: not valid TOML: {error}") from error
    except RecursionError as error:
        raise ProfileError(f"{source}: its tables or lists are nested too deeply") from error


def _build(data: Mapping[str, Any], source: str) -> Profile:
    """Return a checked profile.

    Raises:
        ProfileError: a field is unknown, missing or out of range; the message names it.
    """
    samplers = sampler_specs.complete(data.get("samplers", {}), source)
    stated = {"name": "", "description": ""} | dict(data) | {"samplers": samplers}
    try:
        profile = _adapter().validate_python(stated)
    except ValidationError as error:
        raise ProfileError(f"{source}: {_mistake(error)}") from None
    _check_order(profile.adaptive, source)
    return profile


@functools.cache
def _adapter() -> TypeAdapter[Profile]:
    return TypeAdapter(Profile)


def _mistake(error: ValidationError) -> str:
    """Return what is wrong in a profile, with what may be meant by an unknown name."""
    first = error.errors(include_url=False)[0]
    *path, name = map(str, first["loc"])
    if first["type"] == "dataclass_type":
        return f"[{name}] must be a table"
    if first["type"] != "unexpected_keyword_argument":
        return explained(error)
    section = get_type_hints(Profile)[path[0]] if path else Profile
    known = [field.name for field in dataclasses.fields(section)]
    return unknown(name, known, "".join(f"{step}." for step in path))


def _check_order(adaptive: Adaptive, source: str) -> None:
    for name in ("top_p", "top_k", "min_p"):
        low, high = getattr(adaptive, f"min_{name}"), getattr(adaptive, f"max_{name}")
        if low > high:
            raise ProfileError(
                f"{source}: adaptive.min_{name} ({low}) exceeds adaptive.max_{name} ({high})"
            )


AUTO = "auto"  # names the profile that fits the model


def user_folder() -> Path:
    home = expanded(os.environ.get("XDG_CONFIG_HOME") or "~/.config", ConfigurationError)
    return home / "entropix" / "profiles"


def profile_for(config: ModelShape) -> Profile:
    """Return the profile calibrated for a model: a user's newest that is valid, or a built-in
    one."""
    key = fingerprint(config)
    for profile in _candidates():
        if profile.calibration.get("fingerprint") == key:
            return profile
    return Profile.load(REFERENCE)


def resolve(
    profile: str | Path | Profile,
    config: ModelShape,
    changes: Mapping[str, Mapping[str, Any]] | None = None,
) -> Profile:
    """Return a profile for a model, `AUTO` or one that `Profile.load` takes, with some changes.

    Raises:
        ProfileError: no such profile, a bad one, or a field that is unknown or out of range.
    """
    found = profile_for(config) if profile == AUTO else Profile.load(profile)
    return found.replace(changes or {})


def _candidates() -> Iterator[Profile]:
    files = user_folder().glob("*.toml") if user_folder().is_dir() else ()
    own = sorted(files, key=lambda file: file.stat().st_mtime, reverse=True)
    sources: list[str | Path] = [*own, *builtin_names()]
    for source in sources:
        try:
            yield Profile.load(source)
        except ProfileError:
            continue
