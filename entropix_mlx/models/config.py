"""The shape of a model, and how it is read from a ``config.json`` and checked.

This module needs no MLX, so that whatever knows models by their shape needs none either.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Protocol

from .. import limits
from ..errors import ModelNotFoundError, UnsupportedModelError, WeightsError, brief
from .rope_scaling import frequencies, parse_scaling

ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3")
"""Values of ``model_type`` that this package's model computes."""

_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
)
_SWITCHES = ("rope_traditional", "attention_bias", "mlp_bias", "tie_word_embeddings")


class ModelShape(Protocol):
    """What is known of every model, whatever computes it. A size that it does not have is 0."""

    @property
    def model_type(self) -> str:
        """Its architecture."""

    @property
    def vocab_size(self) -> int:
        """Number of its tokens."""

    @property
    def hidden_size(self) -> int:
        """Numbers in the state of a position."""

    @property
    def intermediate_size(self) -> int:
        """Width of the feed-forward networks."""

    @property
    def num_hidden_layers(self) -> int:
        """Number of layers."""

    @property
    def num_attention_heads(self) -> int:
        """Query heads of a layer."""

    @property
    def num_key_value_heads(self) -> int:
        """Key heads of a layer."""

    @property
    def max_position_embeddings(self) -> int:
        """The context length, in tokens."""


@dataclass(frozen=True)
class LlamaConfig:
    """The shape of a model, with the field names of a Hugging Face ``config.json``."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    """The context length, in tokens."""
    rope_scaling: dict[str, Any] | None = None
    rope_traditional: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = True
    model_type: str = "llama"
    """The branch of the family: ``qwen2`` and ``qwen3`` differ as the properties below say."""

    @property
    def qkv_bias(self) -> bool:
        """Whether the projections to queries, keys and values have a bias."""
        return self.attention_bias or self.model_type == "qwen2"

    @property
    def qk_norm(self) -> bool:
        """Whether each head's queries and keys are normalised before the rotary embedding."""
        return self.model_type == "qwen3"


def fingerprint(config: ModelShape) -> str:
    """Return a model's shape as a text: it identifies a model whatever its name and format are."""
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
    file = folder / "config.json"
    try:
        config = json.loads(limits.read_text(file, limits.CONFIG_BYTES))
    except FileNotFoundError as error:
        raise ModelNotFoundError(f"{folder} holds no model: config.json is missing") from error
    except (OSError, ValueError, RecursionError) as error:
        raise WeightsError(f"{file}: cannot be read as JSON: {error}") from error
    if not isinstance(config, dict):
        raise WeightsError(f"{file}: not a JSON object")
    return config


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
    """Tell whether attention ever looks back less far than the context is long."""
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
        UnsupportedModelError: as for `rope_scaling.parse_scaling`.
    """
    known = {f.name for f in fields(LlamaConfig)}
    given = {key: value for key, value in config.items() if key in known and value is not None}
    values: dict[str, Any] = {
        "num_key_value_heads": config.get("num_attention_heads"),
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 2048,
    }
    values |= given
    for name in _SIZES:
        _check_size(name, values.get(name), where)
    values.setdefault("head_dim", values["hidden_size"] // values["num_attention_heads"])
    _check_size("head_dim", values["head_dim"], where, limits.HEAD_DIM)
    if values["head_dim"] % 2:
        raise WeightsError(f"{where}: head_dim must be even, not {values['head_dim']}")
    for name in _SWITCHES:
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

    Where it states a thing twice, the same one counts as in transformers: ``rope_scaling``, the old
    name, before ``rope_parameters``, and a theta in there before one beside it.
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
