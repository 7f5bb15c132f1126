"""The shape of a model: how it is read from a ``config.json`` and checked, rotary scaling included.

This module needs no MLX, so that whatever knows models by their shape needs none either.

A rotary embedding turns pair i of a head's numbers by position · f_i, with the frequencies
f_i = theta^(-2i / head_dim). A model that was trained on short texts is stretched to longer ones by
lowering some frequencies. The formulas are those of ``modeling_rope_utils.py`` in transformers, in
float64. A key that would change the result and is not handled here is refused by name, since a
model that ignores it answers as fluently as a correct one, and wrongly.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from .. import limits
from ..errors import (
    EntropixError,
    ModelNotFoundError,
    UnsupportedModelError,
    WeightsError,
    brief,
    first_line,
)

ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3")
"""Values of ``model_type`` that this package's own port computes."""


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """The shape of any model, with the field names of a Hugging Face ``config.json``.

    A size that a model does not have is 0.
    """

    model_type: str
    vocab_size: int
    hidden_size: int = 0
    intermediate_size: int = 0
    num_hidden_layers: int = 0
    num_attention_heads: int = 0
    num_key_value_heads: int = 0
    max_position_embeddings: int = 0
    """The context length, in tokens."""


@dataclass(frozen=True, kw_only=True)
class LlamaConfig(ModelShape):
    """The shape of a model of the Llama family."""

    model_type: str = "llama"
    """The branch of the family: ``qwen2`` and ``qwen3`` differ as the properties below say."""
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: dict[str, Any] | None = None
    rope_traditional: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = True

    @property
    def qkv_bias(self) -> bool:
        """Whether the projections to queries, keys and values have a bias."""
        return self.attention_bias or self.model_type == "qwen2"

    @property
    def qk_norm(self) -> bool:
        """Whether each head's queries and keys are normalised before the rotary embedding."""
        return self.model_type == "qwen3"


def fingerprint(config: ModelShape) -> str:
    """Return a model's shape as a text, which identifies it whatever its name and format are."""
    kind = "" if config.model_type in ARCHITECTURES else f"{config.model_type}, "
    return (
        f"{kind}{config.num_hidden_layers} layers of {config.hidden_size} and"
        f" {config.intermediate_size}, {config.num_attention_heads} heads over"
        f" {config.num_key_value_heads}, vocabulary {config.vocab_size}"
    )


def read_config(folder: Path) -> dict[str, Any]:
    """Return a folder's ``config.json``.

    Raises:
        ModelNotFoundError: there is none.
        WeightsError: it is not a JSON object.
    """
    try:
        return read_object(folder / "config.json", limits.CONFIG_BYTES)
    except FileNotFoundError as error:
        raise ModelNotFoundError(f"{folder} holds no model: config.json is missing") from error


def read_object(file: Path, most: int, error: type[EntropixError] = WeightsError) -> dict[str, Any]:
    """Return the JSON object in a file of at most so many bytes.

    Raises:
        FileNotFoundError: there is no such file.
        EntropixError: `error`, where the file cannot be read or holds something else.
    """
    try:
        content = json.loads(limits.read_text(file, most))
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError) as reason:
        raise error(f"{file}: cannot be read as JSON: {first_line(reason)}") from reason
    if not isinstance(content, dict):
        raise error(f"{file}: not a JSON object; download it again")
    return content


def check_family(config: dict[str, Any], where: str) -> None:
    """Refuse, by name, every model that `llama.Model` does not compute.

    Raises:
        UnsupportedModelError: another architecture, a sliding window, another activation, or
            weights packed in a way that is not MLX's.
        WeightsError: a field is of another kind than it should be; `where` says whose.
    """
    for name in ("quantization", "quantization_config", "rope_parameters", "rope_scaling"):
        if not isinstance(config.get(name), dict | None):
            raise WeightsError(f"{where}: {name} must be an object, not {brief(config[name])}")
    for name in ("architectures", "layer_types"):
        if not isinstance(config.get(name), list | None):
            raise WeightsError(f"{where}: {name} must be a list, not {brief(config[name])}")
    if config.get("model_type") not in ARCHITECTURES:
        raise UnsupportedModelError(
            f"{where}: architecture {brief(config.get('model_type'))} is not supported: only"
            f" Llama-shaped models are ({', '.join(ARCHITECTURES)})"
        )
    heads = config.get("architectures") or ["LlamaForCausalLM"]
    if not any(str(name).endswith("ForCausalLM") for name in heads):
        raise UnsupportedModelError(
            f"{where}: architecture {brief(heads[0])} is not supported: it does not predict tokens"
        )
    for layer_type in config.get("layer_types") or ():
        if layer_type not in ("full_attention", "sliding_attention"):
            raise UnsupportedModelError(
                f"{where}: {brief(layer_type)} in layer_types is not supported"
            )
    if _slides(config):
        raise UnsupportedModelError(f"{where}: sliding-window attention is not supported")
    if config.get("hidden_act", "silu") not in ("silu", "swish"):
        raise UnsupportedModelError(
            f"{where}: the activation {brief(config['hidden_act'])} is not supported: only silu is"
        )
    method = (config.get("quantization_config") or {}).get("quant_method")
    if method is not None:
        raise UnsupportedModelError(
            f"{where}: weights packed by {brief(method)} are not supported; convert the original"
            " model"
        )


def _slides(config: dict[str, Any]) -> bool:
    if "sliding_attention" in (config.get("layer_types") or ()):
        return True
    window, context = config.get("sliding_window"), config.get("max_position_embeddings")
    if not window or config.get("use_sliding_window") is False:
        return False
    return not (isinstance(window, int) and isinstance(context, int) and window >= context)


def parse_config(config: dict[str, Any], where: str) -> LlamaConfig:
    """Return the shape that a ``config.json`` states, with the family's defaults filled in.

    Raises:
        WeightsError: a field is missing or absurd; `where` says whose.
        UnsupportedModelError: as for `parse_scaling`.
    """
    types = {field.name: field.type for field in fields(LlamaConfig)}
    given = {key: value for key, value in config.items() if key in types and value is not None}
    values: dict[str, Any] = {
        "num_key_value_heads": config.get("num_attention_heads"),
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 2048,
    }
    values |= given
    for name in (field.name for field in fields(ModelShape) if field.type == "int"):
        _check_size(name, values.get(name), where)
    values.setdefault("head_dim", values["hidden_size"] // values["num_attention_heads"])
    _check_size("head_dim", values["head_dim"], where, limits.HEAD_DIM)
    if values["head_dim"] % 2:
        raise WeightsError(f"{where}: head_dim must be even, not {values['head_dim']}")
    for name in (name for name, kind in types.items() if kind == "bool"):
        if type(values.get(name, False)) is not bool:
            raise WeightsError(f"{where}: {name} must be true or false, not {brief(values[name])}")
    if values["num_attention_heads"] % values["num_key_value_heads"]:
        raise WeightsError(
            f"{where}: num_attention_heads ({values['num_attention_heads']}) must be a multiple of"
            f" num_key_value_heads ({values['num_key_value_heads']})"
        )
    values |= _parse_rope(config, values, where)
    for name in ("rms_norm_eps", "rope_theta"):
        number = values[name]
        if type(number) not in (int, float) or not 0 < number <= limits.NUMBER:
            raise WeightsError(f"{where}: {name} must be a positive number, not {brief(number)}")
    shape = LlamaConfig(**values)
    try:
        frequencies(shape.head_dim, shape.rope_theta, shape.rope_scaling)
    except (ArithmeticError, ValueError) as error:
        raise UnsupportedModelError(
            f"{where}: rope_theta and rope_scaling do not fit each other: {error}"
        ) from error
    return shape


def _parse_rope(config: dict[str, Any], values: dict[str, Any], where: str) -> dict[str, Any]:
    """Return ``rope_theta`` and ``rope_scaling``, from wherever a configuration states them.

    Where a configuration states one of them twice, transformers' order of precedence holds:
    ``rope_scaling``, the old name, before ``rope_parameters``, and a theta in there before one
    beside it.
    """
    stated = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if config.get("partial_rotary_factor", 1) not in (1, None):
        raise UnsupportedModelError(f"{where}: partial_rotary_factor is not supported")
    original = config.get("original_max_position_embeddings")
    if original is not None:
        stated = stated | {"original_max_position_embeddings": original}
    return {
        "rope_theta": stated.get("rope_theta", values.get("rope_theta", 10000.0)),
        "rope_scaling": parse_scaling(stated, values["max_position_embeddings"], where),
    }


def _check_size(name: str, value: Any, where: str, most: int = limits.SIZE) -> None:
    if type(value) is not int or not 0 < value <= most:
        raise WeightsError(
            f"{where}: {name} must be a positive whole number of at most {most}, not {brief(value)}"
        )


Scaling = Mapping[str, Any]
"""A ``rope_scaling`` that `parse_scaling` returned."""

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
        if type(original) is not int or not 0 < original <= limits.NUMBER:
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
    return type(value) in (int, float) and 0 < value <= limits.NUMBER


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
