"""A profile: every threshold, coefficient and option of the samplers, read from TOML.

`sections.py` gives the numbers names, types and ranges. A file may state only what it changes: the
rest comes from the profile named by its ``extends`` key, `reference` by default.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from .. import limits
from ..errors import ConfigurationError, ProfileError, brief
from ..files import expanded
from ..models.config import ModelShape, fingerprint
from ..records import explained, parse_toml
from . import sections
from .fields import hint, overlaid

REFERENCE = "reference"
AUTO = "auto"  # names the profile that fits the model


class Profile(sections.Section):
    """All numbers that samplers and interventions use. `Profile.load` reads and checks one."""

    name: str = ""
    description: str = ""
    base: sections.Base
    thresholds: sections.Thresholds
    think: sections.Think
    notes: sections.RetrievalRule
    branch: sections.BranchStrategy
    resample: sections.Resample
    adaptive: sections.Adaptive
    position_score: sections.PositionScore
    baselines: sections.Baselines
    targets: sections.Targets
    abstain: sections.Abstain
    answers: sections.AnswersRule
    samplers: sections.SamplerOptions
    calibration: dict[str, Any] = Field(default={})
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
        return _build(overlaid(self.model_dump(), changes), source)


def differences(first: Profile, second: Profile) -> dict[str, tuple[Any, Any]]:
    """Return the numbers that differ, by dotted name: ``"thresholds.low_entropy": (0.1, 0.2)``."""
    one, other = _flat(first), _flat(second)
    return {name: (one[name], other[name]) for name in one if one[name] != other[name]}


def _flat(profile: Profile) -> dict[str, Any]:
    tables = profile.model_dump(exclude={"name", "description", "calibration"})
    tables |= {f"samplers.{name}": options for name, options in tables.pop("samplers").items()}
    return {
        f"{section}.{name}": value
        for section, content in tables.items()
        for name, value in content.items()
    }


@functools.cache
def builtin_names() -> tuple[str, ...]:
    names = (file.name for file in resources.files(__package__).iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml")))


def read_source(name: str | Path) -> tuple[str, str]:
    """Return where a profile stands, for messages, and its TOML text, which is not yet checked.

    Raises:
        ProfileError: there is no profile of that name, and no such file.
    """
    if str(name) in builtin_names():
        file = resources.files(__package__) / f"{name}.toml"
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
    try:
        data = parse_toml(text)
    except ValueError as error:  # also a whole number of more digits than Python reads
        raise ProfileError(f"{source}: not valid TOML: {error}") from error
    if str(profile) == REFERENCE:
        return _build(data, source)
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


def _build(data: Mapping[str, Any], source: str) -> Profile:
    """Return a checked profile.

    Raises:
        ProfileError: a field is unknown, missing or out of range; the message names it.
    """
    try:
        profile = Profile.model_validate(data)
    except ValidationError as error:
        raise ProfileError(f"{source}: {_mistake(error)}") from None
    if reversed_limits := profile.adaptive.reversed_limits():
        raise ProfileError(f"{source}: {reversed_limits}")
    return profile


def _mistake(error: ValidationError) -> str:
    """Return what is wrong in a profile, with what may be meant by an unknown name."""
    first = error.errors(include_url=False)[0]
    *path, name = map(str, first["loc"])
    if first["type"] == "model_type":
        return f"[{'.'.join([*path, name])}] must be a table"
    if first["type"] != "extra_forbidden":
        return explained(error)
    section: Any = Profile
    for step in path:
        section = section.model_fields[step].annotation
    prefix = "".join(f"{step}." for step in path)
    return f"unknown field {prefix}{name:.60}; {hint(name, section.model_fields, prefix)}"


def user_folder() -> Path:
    home = expanded(os.environ.get("XDG_CONFIG_HOME") or "~/.config", ConfigurationError)
    return home / "entropix" / "profiles"


def profile_for(config: ModelShape) -> Profile:
    """Return the profile that was calibrated for a model: the user's newest, or a built-in one."""
    key = fingerprint(config)
    fitting = (p for p in _candidates() if p.calibration.get("fingerprint") == key)
    return next(fitting, Profile.load(REFERENCE))


def _candidates() -> Iterator[Profile]:
    """Yield all profiles that are valid: the user's, the newest first, and the built-in ones."""
    own = sorted(user_folder().glob("*.toml"), key=lambda file: -file.stat().st_mtime)
    sources: list[str | Path] = [*own, *builtin_names()]
    for source in sources:
        try:
            yield Profile.load(source)
        except ProfileError:
            continue


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
