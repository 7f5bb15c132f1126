"""What mlx-lm's classes leave out and transformers computes: rotary embeddings, windows, routing.

mlx-lm has a few kinds of rotary embeddings, of which many classes take none, and several classes
have no windows. A model that it built is made right here, layer by layer, and keeps its weights.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from types import FunctionType, SimpleNamespace
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from ...errors import UnsupportedModelError
from ..config import Frequencies, frequencies, parse_scaling
from ..llama.model import ScaledRoPE
from .arguments import known, language_of, ropes_of

_LAYER = re.compile(r"layers\.(\d+)\.")
_NO_SCALING = {
    *("partial_rotary_factor", "mrope_section", "mrope_interleaved", "mrope_interleave"),
    *("llama_4_scaling_beta", "max_position_embeddings", "alpha"),
}
"""Keys of ``rope_parameters`` that other code reads, or that only pictures need."""

_ACTIVATIONS = {"hidden_act", "hidden_activation", "activation_function"}


def mend(model: nn.Module, truth: Any, read: frozenset[str], where: str) -> dict[str, Any]:
    """Make a model of mlx-lm compute what transformers would; return what else it is limited to.

    Raises:
        UnsupportedModelError: its rotary embedding is of a kind that is not computed here.
    """
    language = language_of(truth)
    _mend_ropes(model, language, where)
    if not {"sliding_window", "attention_window_size"} & read:
        _mend_windows(model, language)
    if not _ACTIVATIONS & read:
        _mend_gelu(model, language)
    if str(known(truth, "dtype")).endswith("float32"):  # a scale is rounded to half precision
        _substitute(model, "mx", mx, bfloat16=mx.float32)
    if multiplier := known(language, "key_multiplier"):  # of Falcon's keys, which it forgets
        for layer in model.layers:
            layer.self_attn.scale *= multiplier
    for module in model.modules():
        if "e_score_correction_bias" in module:
            # Experts of other groups score 0 in mlx-lm, so no expert's score may be below that.
            bias = module.e_score_correction_bias
            module.e_score_correction_bias = bias - mx.minimum(bias.min(), 0)
    lengths = [part.longest for part in model.modules() if isinstance(part, _ShortRoPE)]
    return {"max_position_embeddings": min(lengths)} if lengths else {}


class _ShortRoPE(ScaledRoPE):
    """The rotary embedding of texts up to a length, where longer ones have another from the start.

    A text that grows beyond it would have to be read again as a whole.
    """

    longest: int

    def __call__(self, x: mx.array, offset: int | mx.array = 0) -> mx.array:
        if isinstance(offset, int) and offset + x.shape[-2] > self.longest:
            raise UnsupportedModelError(
                f"the text has more than {self.longest} tokens, from where on this model needs"
                " other rotary factors (long_factor of longrope): shorten it"
            )
        return super().__call__(x, offset)


def _mend_ropes(model: nn.Module, truth: Any, where: str) -> None:
    """Replace the rotary embeddings that turn otherwise than the configuration says."""
    ropes, kinds = ropes_of(truth), known(truth, "layer_types")
    modules = dict(model.named_modules()) if ropes else {}
    for path, module in modules.items():
        size = getattr(module, "dims", getattr(module, "dim", None))
        if "rop" not in type(module).__name__.lower() or not isinstance(size, int):
            continue
        layer = _LAYER.search(path)
        rope = ropes.get(kinds[int(layer[1])] if layer and kinds else "", ropes.get(""))
        if rope is None or "rope_theta" not in rope:
            continue
        interleaved = getattr(module, "traditional", known(truth, "rope_interleave", False))
        size, found = _frequencies(size, rope, truth, where)
        ours = ScaledRoPE(size, interleaved, found)
        if rope.get("rope_type") == "longrope" and rope["short_factor"] != rope["long_factor"]:
            ours = _ShortRoPE(size, interleaved, found)
            ours.longest = rope["original_max_position_embeddings"]
        probe = mx.random.normal((1, 1, 3, size), key=mx.random.key(0))
        if (
            isinstance(ours, _ShortRoPE)
            or size != getattr(module, "dims", size)
            or not mx.allclose(ours(probe, offset=250), module(probe, offset=250), atol=1e-3)
        ):
            parent, _, name = path.rpartition(".")
            modules[parent][name] = ours


def _frequencies(
    size: int, rope: dict[str, Any], truth: Any, where: str
) -> tuple[int, Frequencies]:
    """Return how many numbers of a head are turned, and how."""
    kind, theta = rope.get("rope_type", "default"), rope["rope_theta"]
    part = rope.get("partial_rotary_factor", 1.0)
    if kind == "proportional":
        turns = frequencies(size, theta, None).turns
        slow = [turn / rope.get("factor", 1.0) for turn in turns[: int(part * size // 2)]]
        return size, Frequencies(slow + [0.0] * (len(turns) - len(slow)), 1.0)
    if kind == "longrope" and known(truth, "index_topk"):
        raise UnsupportedModelError(
            f"{where}: longrope is not supported with an index of keys: use another model"
        )
    if part != 1 and "partial_rotary_factor" not in str(ropes_of(type(truth)())):
        raise UnsupportedModelError(
            f"{where}: partial_rotary_factor is {part}, which this kind of model has not: copy"
            " config.json from the original model"
        )
    head = known(truth, "qk_rope_head_dim") or known(truth, "head_dim")
    size = int(part * (head or size / part))
    if kind == "longrope":
        return size, _longrope(size, rope, truth, where)
    if rope.get("alpha"):
        theta *= rope["alpha"] ** (size / (size - 2))
    scaling = {k: v for k, v in rope.items() if k not in _NO_SCALING and v is not None}
    if "" not in ropes_of(truth):
        scaling["truncate"] = True  # transformers looks for it beside the types of layers
    if kind == "mrope":
        scaling["rope_type"] = "default"
    context = known(truth, "max_position_embeddings")
    return size, frequencies(size, theta, parse_scaling(scaling, context, where))


def _longrope(size: int, rope: dict[str, Any], truth: Any, where: str) -> Frequencies:
    """Return the frequencies for texts that are not longer than the original context."""
    original = rope["original_max_position_embeddings"]
    factor = rope.get("factor") or truth.max_position_embeddings / original
    scale = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    turns = zip(
        frequencies(size, rope["rope_theta"], None).turns, rope["short_factor"], strict=True
    )
    return Frequencies(
        [turn / short for turn, short in turns], rope.get("attention_factor") or scale
    )


def _mend_windows(model: nn.Module, truth: Any) -> None:
    """Give layers the window that their class does not know."""
    window, kinds = known(truth, "sliding_window"), known(truth, "layer_types")
    if not window or known(truth, "use_sliding_window", True) is False:
        return
    for number, layer in enumerate(model.layers):
        if not kinds or kinds[number] == "sliding_attention":
            layer.self_attn.__class__ = _windowed(type(layer.self_attn), window)


def _mend_gelu(model: nn.Module, truth: Any) -> None:
    """Give layers the exact GELU or its approximation, whichever their class has mistaken."""
    stated = str(next(filter(None, (known(truth, name) for name in sorted(_ACTIVATIONS))), ""))
    if stated.startswith("gelu"):
        right = nn.gelu if stated == "gelu" else nn.gelu_approx
        _substitute(model, "nn", nn, gelu=right, gelu_approx=right)


def _substitute(model: nn.Module, name: str, library: Any, **substitutes: Any) -> None:
    """Have a model's layers find other things under the names of a library."""
    substitute = SimpleNamespace(**vars(library) | substitutes)
    for module in model.modules():
        call = type(module).__call__
        code = getattr(call, "__code__", None)
        if code and name in code.co_names and not substitutes.keys().isdisjoint(code.co_names):
            own = FunctionType(
                code, {**call.__globals__, name: substitute}, None, call.__defaults__
            )
            module.__class__ = _subclass(type(module), own)


def _windowed(attention: type[nn.Module], window: int) -> type[nn.Module]:
    """Return a class of attention whose queries see the last keys of a window only."""

    def attend(self: nn.Module, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
        before = cache.offset if cache is not None else 0
        if before + x.shape[1] > window:
            keys = mx.arange(before + x.shape[1])
            near = (keys <= keys[before:, None]) & (keys > keys[before:, None] - window)
            shut = isinstance(mask, mx.array) and mask.dtype != mx.bool_
            if shut:
                mask = mx.where(near, mask, -mx.inf)
            else:
                mask = near & mask if isinstance(mask, mx.array) else near
        result: mx.array = attention.__call__(self, x, mask, cache)
        return result

    return _subclass(attention, attend)


def _subclass(kind: type[nn.Module], call: Callable[..., mx.array]) -> type[nn.Module]:
    return type(kind.__name__, (kind,), {"__call__": call, "__module__": kind.__module__})
