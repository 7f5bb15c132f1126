"""Scaled rotary embeddings: which scaling a configuration asks for, and its frequencies.

A rotary embedding turns pair i of a head's numbers by position · f_i, with the frequencies
f_i = theta^(-2i / head_dim). A model that was trained on short texts is stretched to longer ones by
lowering some frequencies. The formulas are those of ``modeling_rope_utils.py`` in transformers, in
float64. A key that would change the result and is not handled here is refused by name, since a
model that ignores it answers as fluently as a correct one, and wrongly.

This module needs no MLX.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from ..errors import UnsupportedModelError, brief
from ..limits import NUMBER

Scaling = Mapping[str, Any]
"""A ``rope_scaling`` that `parse_scaling` has checked."""

_FREE_KEYS = {"rope_type", "type", "rope_theta", "finetuned", "original_max_position_embeddings"}
"""Keys that any scaling may have: they name its type, are read elsewhere, or change nothing."""
_KEYS = {
    "linear": {"factor"},
    "dynamic": {"factor"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor"},
    "yarn": {
        *("factor", "attention_factor", "beta_fast", "beta_slow"),
        *("mscale", "mscale_all_dim", "truncate"),
    },
}
"""The types that are computed here, and the keys that each of them reads."""
_REQUIRED = {"factor", "low_freq_factor", "high_freq_factor"}
_BETA_FAST, _BETA_SLOW = 32.0, 1.0
"""Rotations over the original context above which yarn keeps a frequency, below which it scales."""


class Frequencies(NamedTuple):
    """A rotary embedding."""

    turns: list[float]
    """The angle in radians by which each pair is turned per position; head_dim / 2 of them."""
    attention_factor: float
    """Factor on the turned queries and on the turned keys."""


def parse_scaling(
    stated: Mapping[str, Any], original_context: Any, where: str
) -> dict[str, Any] | None:
    """Return a ``rope_scaling`` with the keys that matter, or None where nothing is scaled.

    Args:
        stated: ``rope_scaling`` or ``rope_parameters`` as a configuration has it.
        original_context: what holds unless ``original_max_position_embeddings`` is stated.
        where: the file, for messages.

    Raises:
        UnsupportedModelError: the type or a key is not handled, is missing, or has a value that
            cannot be.
    """
    kind = _type_of(stated, where)
    if kind == "default":
        return None
    keys = _KEYS[kind]
    scaling: dict[str, Any] = {"rope_type": kind}
    for name in sorted(keys):
        value = stated.get(name)
        if value is None and name not in _REQUIRED:
            continue
        scaling[name] = value
        if name == "truncate" and type(value) is not bool:
            _refuse(where, name, value, "true or false")
        elif name != "truncate" and not _is_positive(value):
            _refuse(where, name, value, "a positive number")
    if kind in ("llama3", "yarn"):
        original = stated.get("original_max_position_embeddings", original_context)
        if type(original) is not int or not 0 < original <= NUMBER:
            _refuse(where, "original_max_position_embeddings", original, "a positive whole number")
        scaling["original_max_position_embeddings"] = original
    if kind == "llama3" and scaling["low_freq_factor"] >= scaling["high_freq_factor"]:
        _refuse(where, "low_freq_factor", scaling["low_freq_factor"], "less than high_freq_factor")
    return scaling


def _type_of(stated: Mapping[str, Any], where: str) -> str:
    """Return ``"default"`` or a key of `_KEYS`; refuse other types, and keys of no known type."""
    kind = stated.get("rope_type", stated.get("type"))
    if "type" in stated and stated["type"] != kind:
        raise UnsupportedModelError(
            f"{where}: rope_scaling has the rope_type {brief(kind)} and the type"
            f" {brief(stated['type'])}; keep the right one"
        )
    if kind is not None and kind not in ("default", *_KEYS):
        raise UnsupportedModelError(
            f"{where}: the rope_scaling {brief(kind)} is not supported: only {', '.join(_KEYS)} are"
        )
    # A key of one type in another is ignored, as in transformers.
    known = _FREE_KEYS.union(*_KEYS.values())
    for name in sorted(stated.keys() - known):
        if name != "partial_rotary_factor" or stated[name] != 1:
            raise UnsupportedModelError(
                f"{where}: the key {brief(name)} of rope_scaling is not supported; it could change"
                " what the model computes"
            )
    if kind is None and stated.keys() - {"type", "rope_theta", "original_max_position_embeddings"}:
        raise UnsupportedModelError(
            f"{where}: rope_scaling has no rope_type; copy config.json from the original model"
        )
    return kind or "default"


def _is_positive(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value <= NUMBER


def _refuse(where: str, name: str, value: Any, wanted: str) -> None:
    raise UnsupportedModelError(
        f"{where}: {name} in rope_scaling must be {wanted}, not {brief(value)}"
    )


def frequencies(head_dim: int, theta: float, scaling: Scaling | None) -> Frequencies:
    """Return the rotary embedding of a head.

    ``dynamic`` lowers frequencies only beyond ``max_position_embeddings``, where the context of a
    model ends here: up to there it is no scaling at all.

    Args:
        head_dim: numbers in a head, even.
        theta: the base of the frequencies.
        scaling: from `parse_scaling`.

    Raises:
        ArithmeticError, ValueError: the numbers fit no formula, as a theta of 1 for yarn.
    """
    turns = [theta ** (-2 * pair / head_dim) for pair in range(head_dim // 2)]
    kind = scaling["rope_type"] if scaling else "default"
    if scaling is None or kind in ("default", "dynamic"):
        return Frequencies(turns, 1.0)
    if kind == "linear":
        return Frequencies([turn / scaling["factor"] for turn in turns], 1.0)
    if kind == "llama3":
        return Frequencies([_llama3(turn, scaling) for turn in turns], 1.0)
    return Frequencies(_yarn(turns, theta, scaling), _yarn_attention_factor(scaling))


def _llama3(turn: float, scaling: Scaling) -> float:
    """Return a frequency by Llama 3.1's rule.

    What turns often over the original context is kept, what turns rarely is divided by the factor,
    and between the two there is a smooth passage.
    """
    factor: float = scaling["factor"]
    low: float = scaling["low_freq_factor"]
    high: float = scaling["high_freq_factor"]
    rotations: float = scaling["original_max_position_embeddings"] * turn / (2 * math.pi)
    if rotations > high:
        return turn
    if rotations < low:
        return turn / factor
    kept = (rotations - low) / (high - low)
    return (1 - kept) * turn / factor + kept * turn


def _yarn(turns: list[float], theta: float, scaling: Scaling) -> list[float]:
    """Return the frequencies of YaRN (https://arxiv.org/abs/2309.00071).

    As in Llama 3's rule, but the passage is linear in the number of the pair. It begins at the pair
    that turns `beta_fast` times over the original context, and ends at that of `beta_slow` times.
    """
    head_dim = 2 * len(turns)

    def pair_of(rotations: float) -> float:
        context = scaling["original_max_position_embeddings"]
        return head_dim * math.log(context / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    begin = pair_of(scaling.get("beta_fast", _BETA_FAST))
    end = pair_of(scaling.get("beta_slow", _BETA_SLOW))
    if scaling.get("truncate", True):
        begin, end = math.floor(begin), math.ceil(end)
    begin, end = max(begin, 0), min(end, head_dim - 1)
    width = end - begin if end != begin else 0.001
    scaled = []
    for pair, turn in enumerate(turns):
        share = min(max((pair - begin) / width, 0.0), 1.0)
        scaled.append(share * turn / scaling["factor"] + (1 - share) * turn)
    return scaled


def _yarn_attention_factor(scaling: Scaling) -> float:
    """Return what queries and keys are multiplied by, which sharpens attention over long texts."""

    def scale(weight: float) -> float:
        factor = scaling["factor"]
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if "attention_factor" in scaling:
        return float(scaling["attention_factor"])
    if "mscale" in scaling and "mscale_all_dim" in scaling:
        return scale(scaling["mscale"]) / scale(scaling["mscale_all_dim"])
    return scale(1.0)
