"""Which profile fits a model: the one that was calibrated for it, or `reference`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import ConfigurationError, ProfileError
from ..files import expanded
from ..models.config import ModelShape, fingerprint
from .profile import REFERENCE, Profile, builtin_names

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
