"""What users of mlx-lm bring along to a model: adapters, a quantized cache, other endings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..errors import (
    ModelNotFoundError,
    TokenizerError,
    UnsupportedModelError,
    WeightsError,
    first_line,
)
from ..models.tapped.model import TappedModel


@dataclass(frozen=True)
class Extras:
    """What is added to a model as it is loaded; the default adds nothing."""

    adapter_path: str | Path | None = None
    """A folder of LoRA or DoRA weights, as mlx-lm writes it."""
    extra_eos_tokens: tuple[str, ...] = ()
    """Tokens that end an answer beside those of the model."""
    chat_template_config: Mapping[str, Any] = field(default_factory=dict)
    """Variables for the chat template, such as ``{"enable_thinking": False}``."""
    kv_bits: int | None = None
    """Bits a number of the KV cache; None does not quantize it."""
    kv_group_size: int = 64
    """Numbers of the KV cache that share a scale."""
    quantized_kv_start: int = 0
    """Tokens after which the cache is quantized."""

    @property
    def needs_tap(self) -> bool:
        """Whether mlx-lm must run the model, because the port has no such thing."""
        return self.adapter_path is not None or self.kv_bits is not None


def add_to_model(model: TappedModel, extras: Extras) -> None:
    """Add the adapters and quantize the caches to come; no weight of the model is read.

    Raises:
        ModelNotFoundError: there are no adapters in the folder.
        WeightsError: they are another model's.
        UnsupportedModelError: this model's cache cannot be quantized so.
    """
    if extras.adapter_path is not None:
        _add_adapters(model, Path(extras.adapter_path).expanduser())
    if extras.kv_bits is not None:
        try:
            model.quantize_cache(extras.kv_bits, extras.kv_group_size, extras.quantized_kv_start)
        except (ValueError, TypeError, NotImplementedError) as error:
            raise UnsupportedModelError(
                f"the KV cache of this {model.config.model_type} cannot be quantized to"
                f" {extras.kv_bits} bits in groups of {extras.kv_group_size}: {first_line(error)}"
            ) from error


def _add_adapters(model: TappedModel, folder: Path) -> None:
    from mlx_lm.tuner.utils import load_adapters
    from safetensors import safe_open

    for name in ("adapter_config.json", "adapters.safetensors"):
        if not (folder / name).is_file():
            raise ModelNotFoundError(f"{folder} holds no adapters: {name} is missing")
    try:
        with safe_open(str(folder / "adapters.safetensors"), framework="numpy"):
            pass  # MLX trusts the header
        load_adapters(model.inner, str(folder))
    except Exception as error:  # whatever a file that fits no model makes it stumble over
        raise WeightsError(
            f"{folder}: the adapters do not fit this model: {first_line(error)}"
        ) from error


def add_to_tokenizer(tokenizer: TokenizerWrapper, extras: Extras) -> None:
    """Add the endings, and the variables of the chat template.

    Raises:
        TokenizerError: an ending is no token of this model.
    """
    for token in extras.extra_eos_tokens:
        # An unknown token would be taken for the one that stands for unknown texts.
        known = token.isdecimal() or token in tokenizer.get_vocab()
        if not known:
            raise TokenizerError(
                f"{token!r} is no token of this model, so it cannot end an answer: name a token,"
                " or give --stop the text"
            )
        tokenizer.add_eos_token(token)
    if extras.chat_template_config:
        tokenizer._chat_template_config = dict(extras.chat_template_config)
