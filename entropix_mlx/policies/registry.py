"""Policies by name, and `decide`: what a profile decides at one position, without a model."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from ..errors import NonFiniteLogitsError, PolicyError
from ..profiles.profile import REFERENCE, Profile
from ..step import Decision
from .baselines import BASELINES, baseline, cntp, greedy
from .entropix import entropix
from .metrics import measure
from .policy import TOP_K_OFF, Policy

POLICIES = ("entropix", "greedy", *BASELINES, "cntp")


@dataclass(frozen=True)
class Overrides:
    """Sampling parameters given by hand; None leaves the policy's own.

    Raises:
        PolicyError: a value out of range.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None

    def __post_init__(self) -> None:
        """Check the ranges."""
        _require(self.temperature, lambda t: 0 <= t < math.inf, "temperature", "0 or more")
        _require(self.top_p, lambda p: 0 < p <= 1, "top_p", "above 0 and at most 1")
        _require(self.top_k, lambda k: k >= 0, "top_k", "0 (off) or more")
        _require(self.min_p, lambda p: 0 <= p <= 1, "min_p", "between 0 and 1")

    def given(self) -> dict[str, float]:
        """Return the parameters that were given."""
        return {name: value for name, value in vars(self).items() if value is not None}


def _require(value: float | None, holds: Callable[[float], bool], name: str, expected: str) -> None:
    if value is not None and not holds(value):
        raise PolicyError(f"{name} must be {expected}, not {value}")


def make_policy(
    name: str = "entropix",
    profile: str | Path | Profile = REFERENCE,
    overrides: Overrides | None = None,
) -> Policy:
    """Build a policy.

    Args:
        name: one of `POLICIES`.
        profile: thresholds and coefficients: a profile, its name or its file.
        overrides: parameters that replace the profile's base parameters (`entropix`), or that
            replace or join the policy's own (the baselines).

    Raises:
        PolicyError: no such policy, or an override that it does not take.
        ProfileError: no such profile, or a bad one.
    """
    profile = Profile.load(profile)
    given = (overrides or Overrides()).given()
    if name not in POLICIES:
        raise PolicyError(f"no sampler {name!r}: choose one of {', '.join(POLICIES)}")
    if name == "greedy":
        if given:
            raise PolicyError(f"the greedy sampler takes no {' or '.join(given)}: leave it out")
        return greedy(profile)
    if name == "cntp":
        if filters := [name for name in given if name != "temperature"]:
            raise PolicyError(f"the cntp sampler takes no {' or '.join(filters)}: leave it out")
        return cntp(profile, given.get("temperature"))
    if name == "entropix":
        if given.get("top_k") == TOP_K_OFF:
            raise PolicyError("the entropix sampler scales its top_k: it must be 1 or more")
        return entropix(profile.replace({"base": given}))
    return baseline(name, profile, given)


def decide(
    logits: Any,
    attention_scores: Any,
    profile: str | Path | Profile = REFERENCE,
    just_inserted: bool = False,
) -> Decision:
    """Return what a profile decides for one position.

    Args:
        logits: `(vocab,)` numbers: a list, a NumPy array or an MLX array.
        attention_scores: `(heads, keys)` scaled dot products of the last query, before softmax.
        profile: a profile, its name or its file.
        just_inserted: whether the thinking text was inserted just before this position.

    Raises:
        NonFiniteLogitsError: the logits hold NaN or +∞, or nothing but −∞.
        ProfileError: no such profile, or a bad one.
        ValueError: the arrays have another number of dimensions, or none in one.
    """
    z, scores = _to_numpy(logits), _to_numpy(attention_scores)
    if z.ndim != 1 or scores.ndim != 2 or not z.size or not scores.size:
        raise ValueError(
            "decide() takes logits (vocab,) and attention_scores (heads, keys),"
            f" not shapes {z.shape} and {scores.shape}"
        )
    if not np.isfinite(z.max()):
        raise NonFiniteLogitsError("the logits hold NaN or infinity: nothing can be decided")
    # Softmax ignores a shift; made in float64, it keeps small differences between large logits.
    centred = mx.array((z - z.max()).astype(np.float32))
    measured = measure(centred[None], [mx.array(scores.astype(np.float32))[None]])
    plan = make_policy("entropix", profile).plan(measured)
    (decision,) = plan.decisions(measured.metrics)
    return replace(decision, strategy=decision.strategy.sampled()) if just_inserted else decision


def _to_numpy(values: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    if isinstance(values, mx.array):  # NumPy has no bfloat16
        values = values.astype(mx.float32)
    return np.array(values, dtype=np.float64)
