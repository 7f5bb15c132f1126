"""What a profile decides at one position, without a model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from ..errors import NonFiniteLogitsError
from ..profiles.profile import REFERENCE, Profile
from ..step import Decision
from .metrics.logits import measure
from .registry import make_sampler


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
    plan = make_sampler("entropix", profile).planned(measured).plan
    (decision,) = plan.decisions(measured.metrics)
    return replace(decision, strategy=decision.strategy.sampled()) if just_inserted else decision


def _to_numpy(values: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    if isinstance(values, mx.array):  # NumPy has no bfloat16
        values = values.astype(mx.float32)
    return np.array(values, dtype=np.float64)
