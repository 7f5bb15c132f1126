"""Profiles as TOML that a person can read: the comments are those of `reference.toml`."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.items import Item, Table

from ..errors import ProfileError
from ..files import write_whole, writing
from .profile import REFERENCE, Profile, read_source

CALIBRATED = ("thresholds", "adaptive")
TITLE = "Made by: entropix calibrate. Units: entropies in bits, varentropies in bits²."


def to_toml(profile: Profile, date: str) -> str:
    """Return a calibrated profile as TOML, with the fields that differ from `reference`."""
    document = tomlkit.document()
    document.add(tomlkit.comment(TITLE))
    document.add(tomlkit.nl())
    named = {"extends": REFERENCE, "name": profile.name, "description": profile.description}
    document.update(named)
    commented = tomlkit.parse(read_source(REFERENCE)[1])
    mine, published = profile.model_dump(), Profile.load().model_dump()
    record = {"date": date} | mine.pop("calibration")
    for section, fields in mine.items():
        if not isinstance(fields, dict):
            continue
        changed = {key: value for key, value in fields.items() if value != published[section][key]}
        if changed or section in CALIBRATED:
            document.add(section, _table(changed, commented.get(section, {})))
    document.add("calibration", _table(record, {}))
    return tomlkit.dumps(document)


def _table(values: Mapping[str, Any], commented: Mapping[str, Item]) -> Table:
    table = tomlkit.table()
    for name, value in values.items():
        item = tomlkit.item(value)
        if isinstance(value, dict):
            item = tomlkit.inline_table()
            item.update(value)
        if name in commented and commented[name].trivia.comment:
            item.comment(commented[name].trivia.comment)
        table.add(name, item)
    return table


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
