"""Samplers by name. The table of them needs no MLX; building one does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import SamplerError, brief
from ..profiles.fields import nearest
from ..profiles.profile import REFERENCE, Profile
from ..profiles.sampler_specs import EVERY, SAMPLERS, SamplerSpec

if TYPE_CHECKING:
    from .base import Sampler

__all__ = ["SAMPLERS", "find_sampler", "make_sampler"]


def find_sampler(name: str) -> SamplerSpec:
    """Return what is known of a sampler. Raises `SamplerError` if there is none of that name."""
    if name not in SAMPLERS:
        near = nearest(name, SAMPLERS)
        choice = f"did you mean {near}?" if near else f"choose one of {', '.join(SAMPLERS)}"
        raise SamplerError(f"no sampler {brief(name)}: {choice}")
    return SAMPLERS[name]


def make_sampler(
    name: str = "entropix",
    profile: str | Path | Profile = REFERENCE,
    given: Mapping[str, Any] | None = None,
) -> Sampler:
    """Build a sampler.

    Args:
        name: one of `SAMPLERS`.
        profile: thresholds, coefficients and options: a profile, its name or its file.
        given: sampling parameters that replace the profile's base parameters (`entropix`), or join
            the sampler's own; those that every sampler takes change the logits that are drawn from.

    Raises:
        SamplerError: no such sampler, or a parameter that it does not take.
        ProfileError: no such profile, or a bad one.
    """
    spec = find_sampler(name)
    checked = spec.check(given or {})
    module = import_module(f"{__package__}.{spec.module}")
    own = {key: value for key, value in checked.items() if key not in EVERY}
    sampler: Sampler = module.build(name, Profile.load(profile), own)
    if len(own) == len(checked):
        return sampler
    from .logit_processors import Penalties

    return replace(sampler, penalties=Penalties.of(checked))
