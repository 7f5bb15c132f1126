"""Comparing profiles, field by field."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from .profile import Profile


def differences(first: Profile, second: Profile) -> dict[str, tuple[Any, Any]]:
    """Return the values that differ, by dotted name: ``"thresholds.low_entropy": (0.1, 0.2)``.

    Names and descriptions do not count.
    """
    one, other = _flat(first), _flat(second)
    return {name: (one[name], other[name]) for name in one if one[name] != other[name]}


def _flat(profile: Profile) -> dict[str, Any]:
    return {
        f"{section}.{name}": value
        for section, content in asdict(profile).items()
        if isinstance(content, dict)  # the others are its name and description
        for name, value in content.items()
    }
