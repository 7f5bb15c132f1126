"""The model that is served, and the limits of one request."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    shutdown_seconds: float = 8.5
    """From a signal to stop to the end of the process."""


@dataclass(frozen=True)
class ServedModel:
    """A model under its name, and how it answers unless a request says otherwise."""

    name: str
    config: ModelShape
    settings: Settings
    """Where a request does not say otherwise; with a profile that was read."""

    @property
    def profile(self) -> Profile:
        return Profile.load(self.settings.profile)

    def description(self) -> dict[str, Any]:
        tables = self.profile.model_dump()
        numbers = {name: value for name, value in tables.items() if name not in _NOT_NUMBERS}
        return {
            "context_length": self.config.max_position_embeddings,
            "fingerprint": fingerprint(self.config),
            "sampler": self.settings.sampler,
            "profiles": [AUTO, *builtin_names(), *sorted(_calibrated())],
            "profile": spell_infinities(numbers),
        }

    def find_profile(self, name: str) -> Profile:
        """Return a built-in or calibrated profile: never a file that a request names.

        Raises:
            RequestError: there is none of that name, or it is damaged.
        """
        if name == AUTO:
            return profile_for(self.config)
        files = {**dict.fromkeys(builtin_names()), **_calibrated()}
        if name not in files:
            known = ", ".join((AUTO, *files))
            raise RequestError(f"no profile {name[:60]!r}: choose one of {known}", "profile")
        try:
            return Profile.load(files[name] or name)
        except ProfileError:  # whose message names the file
            message = f"the profile {name!r} is damaged: entropix calibrate --show says how"
            raise RequestError(message, "profile") from None


def _calibrated() -> dict[str, Path]:
    return {file.stem: file for file in user_folder().glob("*.toml")}
