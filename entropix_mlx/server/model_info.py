"""The model that is served, and the limits of one request."""

from __future__ import annotations

import functools
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from .._version import __version__
from ..errors import ProfileError
from ..models.config import ModelShape, fingerprint
from ..profiles.fields import spell_infinities
from ..profiles.profile import AUTO, Profile, builtin_names, profile_for, user_folder
from ..settings import Settings
from .openai.errors import RequestError

_NOT_NUMBERS = ("name", "description", "calibration")


@dataclass(frozen=True)
class Limits:
    """Limits of one request."""

    body_bytes: int = 4 * 2**20
    body_seconds: float = 30.0
    """In which a whole body must have come."""
    constraint_characters: int = 2**17
    """Of a schema, or of a grammar with those of all tools; some take seconds to compile."""
    shutdown_seconds: float = 8.5
    """From a signal to stop to the end of the process."""


@dataclass(frozen=True)
class ServedModel:
    """A model under its name, and how it answers unless a request says otherwise."""

    name: str
    config: ModelShape
    settings: Settings
    """Where a request does not say otherwise; with a profile that was read."""
    limits: Limits = field(default_factory=Limits)

    @functools.cached_property
    def system_fingerprint(self) -> str:
        """Changes with the program's version, the model's name and its shape."""
        known = f"{__version__}, {self.name}, {fingerprint(self.config)}"
        return f"fp_{sha256(known.encode()).hexdigest()[:12]}"

    @property
    def profile(self) -> Profile:
        return Profile.load(self.settings.profile)

    def description(self) -> dict[str, Any]:
        tables = asdict(self.profile)
        numbers = {name: value for name, value in tables.items() if name not in _NOT_NUMBERS}
        return {
            "context_length": self.config.max_position_embeddings,
            "fingerprint": fingerprint(self.config),
            "sampler": self.settings.sampler,
            "profiles": list(profile_names()),
            "profile": spell_infinities(numbers),
        }

    def find_profile(self, name: str) -> Profile:
        """Return a built-in or calibrated profile: never a file that a request names."""
        if name == AUTO:
            return profile_for(self.config)
        if name in builtin_names():
            return Profile.load(name)
        calibrated = _calibrated()
        if name not in calibrated:
            known = ", ".join(profile_names())
            raise RequestError(f"no profile {name[:60]!r}: choose one of {known}", "profile")
        try:
            return Profile.load(calibrated[name])
        except ProfileError:  # whose message names the file
            message = f"the profile {name!r} is damaged: entropix calibrate --show says how"
            raise RequestError(message, "profile") from None


def profile_names() -> tuple[str, ...]:
    """Return the names of profiles that a request may use."""
    return (AUTO, *builtin_names(), *sorted(_calibrated()))


def _calibrated() -> dict[str, Path]:
    return {file.stem: file for file in user_folder().glob("*.toml")}
