"""The interventions of a profile: leaving some out, and where in an answer they would act."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ...profiles.profile import Profile
from ...profiles.tree import classify
from ...samplers.base import Sampler
from ...samplers.registry import make_sampler
from ...step import Step, Strategy

THINK, BRANCH, RESAMPLE = "think", "branch", "resample"
OFF: dict[str, Mapping[str, Mapping[str, Any]]] = {
    THINK: {"think": {"max_insertions": 0}},
    BRANCH: {"branch": {"max_branches": 0}},
    RESAMPLE: {"thresholds": {"resample_min_entropy": math.inf}},
}
"""By intervention: the fields that leave it out."""
ACTS = {
    THINK: {Strategy.THINK, Strategy.THINK_SAMPLE},
    BRANCH: {Strategy.BRANCH},
    RESAMPLE: {Strategy.RESAMPLE},
}
"""By intervention: the strategies by which an answer may differ from one without it."""


def without(profile: Profile, *names: str) -> Profile:
    """Return a profile without some interventions."""
    for name in names:
        profile = profile.replace(OFF[name])
    return profile


def only(profile: Profile, name: str) -> Profile:
    """Return a profile with one of its interventions and none of the others."""
    return without(profile, *(other for other in OFF if other != name))


def used(profile: Profile) -> list[str]:
    """Return the interventions that a profile has."""
    return [name for name in OFF if without(profile, name) != profile]


def sampler(profile: Profile) -> Sampler:
    """Return the sampler of a profile."""
    return make_sampler("entropix", profile)


def first_place(steps: Sequence[Step], profile: Profile) -> int | None:
    """Return the first place of an answer without interventions at which a profile's would act.

    Until there, an answer with the profile is the same. None if there is no such place.
    """
    acting = {strategy for name in used(profile) for strategy in ACTS[name]}
    found = classify(steps, profile)
    return next((place for place, strategy in enumerate(found) if strategy in acting), None)
