"""What is written into the configuration file where the user keeps settings as defaults."""

from __future__ import annotations

from collections.abc import Mapping

from entropix_mlx.configuration import Value
from entropix_mlx.profiles.profile import Profile

from .screens.tuning.preview import THRESHOLDS
from .screens.tuning.tune import Tuned

SET, SECTION = "set", "thresholds"


def kept_settings(
    tuned: Tuned, usual: Profile, configured: Mapping[str, object]
) -> dict[str, Value | None]:
    """Return the options that make settings the defaults; None takes one out of the file.

    Args:
        tuned: what the user settled on.
        usual: what holds where the file does not change it: a threshold that is as there is not
            written.
        configured: the options that the file has now.
    """
    settings, own = tuned.settings, Profile.load(tuned.settings.profile)
    values: dict[str, Value | None] = {
        "sampler": settings.sampler,
        "temperature": settings.temperature,
        "seed": settings.seed,
        "ask": tuned.ask or None,
        "no-think": own.think.max_insertions == 0 or None,
        "no-branch": own.branch.max_branches == 0 or None,
        SET: _assignments(own, usual, configured) or None,
    }
    return values if tuned.profile is None else values | {"profile": tuned.profile}


def _assignments(own: Profile, usual: Profile, configured: Mapping[str, object]) -> list[str]:
    """Return what the file sets, with the thresholds of a profile in place of its own."""
    before = configured.get(SET)
    lines = [str(line) for line in before] if isinstance(before, list) else []
    named = {name: f"{SECTION}.{name}" for name in THRESHOLDS}
    fields = {line: line.partition("=")[0].strip() for line in lines}
    written = set(fields.values())
    values = {
        field: getattr(own.thresholds, name)
        for name, field in named.items()
        if field in written or getattr(own.thresholds, name) != getattr(usual.thresholds, name)
    }
    others = [line for line in lines if fields[line] not in values]
    return [*others, *(f"{field}={value}" for field, value in values.items())]
