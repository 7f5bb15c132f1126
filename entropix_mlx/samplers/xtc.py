"""XTC, exclude top choices (text-generation-webui, pull request 6335; llama.cpp has it, too).

With a probability that is given, all tokens of at least `threshold` but the least probable of them
cannot be drawn. p is the prediction at temperature 1, before any filter; temperature and filters
then act on what is left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import mlx.core as mx

from ..profiles.profile import Profile
from .base import Plan, Planned, Sampler
from .baselines import baseline
from .metrics.logits import LARGEST_GAP, Measured


def build(name: str, profile: Profile, given: Mapping[str, float]) -> Sampler:
    """Build the sampler; the parameters are those of a baseline."""
    return replace(baseline(name, profile, given, _exclude), draws=2, takes_chance=True)


def _exclude(plan: Plan, measured: Measured, options: Mapping[str, Any]) -> Planned:
    gaps, top_surprise, _ = measured.odds
    above = mx.power(0.5, gaps + top_surprise) >= options["threshold"]
    least = mx.where(above, gaps, 0.0).max(axis=-1, keepdims=True)
    chance = mx.zeros((1,)) if measured.chance is None else measured.chance
    excluded = above & (gaps < least) & (chance < options["probability"])[:, None]
    left = mx.where(excluded, LARGEST_GAP, gaps)
    return Planned(plan, gaps=left - left.min(axis=-1, keepdims=True))
