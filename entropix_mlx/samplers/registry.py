"""Samplers by name. The table of them needs no MLX; building one does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import SamplerError
from ..profiles.fields import nearest, shown
from ..profiles.profile import REFERENCE, Profile
from ..profiles.sampler_specs import Kind, kinds, parameters

if TYPE_CHECKING:
    from .base import Sampler

SAMPLERS: Mapping[str, Kind] = kinds()
"""What is known of each sampler before it is built, in the order of `samplers.toml`."""


@dataclass(frozen=True)
class Overrides:
    """Sampling parameters given by hand; None leaves the sampler's own.

    Raises:
        SamplerError: a value out of range.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    logit_bias: Mapping[int, float] | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None

    def __post_init__(self) -> None:
        for name, value in self.given().items():
            try:
                object.__setattr__(self, name, parameters()[name].rule(value))
            except ValueError as error:
                raise SamplerError(f"{name} {error}") from None

    def given(self) -> dict[str, Any]:
        """Return the parameters that were given."""
        return {name: value for name, value in vars(self).items() if value is not None}


def find_sampler(name: str) -> Kind:
    """Return what is known of a sampler.

    Raises:
        SamplerError: there is none of that name.
    """
    if name not in SAMPLERS:
        near = nearest(name, SAMPLERS)
        choice = f"did you mean {near}?" if near else f"choose one of {', '.join(SAMPLERS)}"
        raise SamplerError(f"no sampler {shown(name)}: {choice}")
    return SAMPLERS[name]


def make_sampler(
    name: str = "entropix",
    profile: str | Path | Profile = REFERENCE,
    overrides: Overrides | None = None,
) -> Sampler:
    """Build a sampler.

    Args:
        name: one of `SAMPLERS`.
        profile: thresholds, coefficients and options: a profile, its name or its file.
        overrides: parameters that replace the profile's base parameters (`entropix`), or that
            replace or join the sampler's own (the baselines); those that every sampler takes change
            the logits that it draws from.

    Raises:
        SamplerError: no such sampler, or an override that it does not take.
        ProfileError: no such profile, or a bad one.
    """
    kind = find_sampler(name)
    given = kind.check((overrides or Overrides()).given())
    module = import_module(f"{__package__}.{kind.module}")
    own = {key: value for key, value in given.items() if not parameters()[key].every}
    sampler: Sampler = module.build(name, Profile.load(profile), own)
    if len(own) == len(given):
        return sampler
    from .logit_processors import adjusted

    return adjusted(sampler, given)
