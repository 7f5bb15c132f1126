"""A ``config.json`` in the keys that mlx-lm's class of its architecture reads.

transformers 5 states the rotary embedding and the kinds of layers in other places than version 4,
whose keys most classes of mlx-lm read. A class passes over keys that it does not know, so the model
would answer as fluently as a correct one, and wrongly: such keys are translated or refused by name.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import math
import re
import sys
from collections.abc import Mapping
from dataclasses import is_dataclass
from functools import cache
from types import ModuleType
from typing import Any, NoReturn

import mlx.core as mx
import mlx.nn as nn

from ..errors import UnsupportedModelError, brief

_COMPUTING = (
    *("attn_logit_softcapping", "final_logit_softcapping", "logit_scale", "logits_scaling"),
    *("attention_multiplier", "embedding_multiplier", "residual_multiplier", "key_multiplier"),
    *("use_qk_norm", "qk_layernorm", "no_rope_layers", "attention_chunk_size"),
    "partial_rotary_factor",
)
"""Keys that change what a model computes: refused where a class of mlx-lm does not take them."""
_FORGOTTEN = {
    "falcon_h1": {"key_multiplier"},
    "glm4_moe": {"rope_scaling"},
    "mixtral": {"rope_scaling"},
    "qwen3_moe": {"rope_scaling"},
    "solar_open": {"rope_scaling"},
}
"""By architecture: keys that mlx-lm's class takes, and does not use."""
_RENAMED = {"num_experts": "num_local_experts"}  # by the old name, that of transformers 5


def translated(config: dict[str, Any], where: str) -> dict[str, Any]:
    """Return a configuration for mlx-lm's class. Raises `UnsupportedModelError` if mlx-lm has no
    such class, or it ignores a key that matters."""
    module = _module(config, where)
    keys = _keys(module) - _FORGOTTEN.get(str(config.get("model_type")), set())
    language = language_part(config)
    for name in _COMPUTING:
        if language.get(name) not in (None, False, 1, []) and name not in keys:
            _refuse(where, name, language[name])
    activation = str(language.get("hidden_act") or "silu")
    known = activation.partition("_")[0] in inspect.getsource(module)
    if "hidden_act" not in keys and not known and activation not in ("silu", "swish"):
        _refuse(where, "hidden_act", activation)
    changes = _ropes(language, keys, where) | _layer_kinds(language, keys, where)
    if isinstance(text := config.get("text_config"), dict):
        return config | {"text_config": text | changes}
    for name, new in _RENAMED.items():
        if name in keys and name not in config and new in config:
            changes[name] = config[new]
    return config | changes


def language_part(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of the model that reads and writes text, which may see or hear, too."""
    text = config.get("text_config")
    return {**config, **text} if isinstance(text, dict) else dict(config)


def limited(config: dict[str, Any]) -> dict[str, Any]:
    """Return a translated configuration with the context up to which mlx-lm computes it rightly: a
    sliding window that the class does not know, or the original context of longrope, beyond which a
    text would have to be read again with other factors."""
    language = language_part(config)
    limits = [_window(language, _keys(_module(config, "")))]
    scaling = language.get("rope_scaling") or {}
    if scaling.get("long_factor"):
        limits.append(_original(scaling, language))
    known = [limit for limit in (language.get("max_position_embeddings"), *limits) if limit]
    if not any(limits):
        return config
    shorter = {"max_position_embeddings": min(known)}
    text = config.get("text_config")
    return config | shorter | ({"text_config": text | shorter} if isinstance(text, dict) else {})


def _window(config: Mapping[str, Any], keys: frozenset[str]) -> int | None:
    window, kinds = config.get("sliding_window"), config.get("layer_types")
    if type(window) is not int or window < 1 or config.get("use_sliding_window") is False:
        return None
    if kinds:
        ignored = "sliding_attention" in kinds
    elif config.get("model_type") == "mistral":  # which mlx-lm's class of Llama reads without
        return window
    else:
        ignored = True
    return window if ignored and not keys & {"sliding_window", "attention_window_size"} else None


def _module(config: Mapping[str, Any], where: str) -> ModuleType:
    from mlx_lm.utils import _get_classes

    kind = config.get("model_type")
    if isinstance(kind, str) and re.fullmatch(r"[A-Za-z0-9_-]+", kind):
        # One module prints what to install and ends the program where a package is missing.
        failures = (ImportError, AttributeError, ValueError, SystemExit)
        with contextlib.suppress(*failures), contextlib.redirect_stdout(sys.stderr):
            return importlib.import_module(_get_classes(dict(config))[0].__module__)
    raise UnsupportedModelError(
        f"{where}: the architecture {brief(kind)} is not supported: the installed mlx-lm does not"
        " know it; a newer one may"
    )


@cache
def _keys(module: ModuleType) -> frozenset[str]:
    """Return the keys that a module of mlx-lm takes, and those models that it is made of."""
    keys: set[str] = set()
    for value in list(vars(module).values()):
        if isinstance(value, type) and is_dataclass(value):
            keys |= inspect.signature(value).parameters.keys()
        name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", "")
        if str(name).startswith("mlx_lm.models.") and name != module.__name__:
            keys |= _keys(sys.modules[name])
    return frozenset(keys)


def _layer_kinds(config: Mapping[str, Any], keys: frozenset[str], where: str) -> dict[str, Any]:
    """Return the period of the kinds of layers, for a class that takes no list of them."""
    kinds = config.get("layer_types")
    periods = {"sliding_window_pattern", "full_attention_interval"} & keys
    if not kinds or "layer_types" in keys or not periods:
        return {}
    period = [*kinds, "full_attention"].index("full_attention") + 1
    if kinds != (kinds[:period] * len(kinds))[: len(kinds)]:
        _refuse(where, "layer_types", kinds)
    spelled = "L" * (period - 1) + "G"  # as Exaone's class takes it
    return dict.fromkeys(periods, spelled if config.get("model_type") == "exaone4" else period)


def _ropes(config: Mapping[str, Any], keys: frozenset[str], where: str) -> dict[str, Any]:
    stated = config.get("rope_parameters") or config.get("rope_scaling")
    if not stated:
        return {}
    if not isinstance(stated, dict):
        _refuse(where, "rope_parameters", stated)
    by_kind = {kind: rope for kind, rope in stated.items() if isinstance(rope, dict)}
    if by_kind and "rope_parameters" in keys:
        return {}
    rope = by_kind.get("full_attention") or next(iter(by_kind.values()), stated)
    theta = rope.get("rope_theta")
    changes = {"rope_theta": theta, "rotary_emb_base": theta} if theta else {}
    if by_kind:
        local = by_kind.get("sliding_attention", rope)
        named = keys & {"rope_local_base_freq", "swa_rope_theta"}
        if local.get("rope_type", "default") != "default" or not (
            named or local.get("rope_theta") == theta
        ):
            _refuse(where, "sliding_attention", local)
        changes |= dict.fromkeys(named, local.get("rope_theta"))
    part = rope.get("partial_rotary_factor")
    if part is not None and keys & {"partial_rotary_factor", "rotary_pct"}:
        changes |= {"partial_rotary_factor": part, "rotary_pct": part}
    elif part not in (None, 1.0) and "rope_parameters" not in keys:
        _refuse(where, "partial_rotary_factor", part)
    return changes | _scaling(rope, config, keys, where)


def _scaling(
    rope: Mapping[str, Any], config: Mapping[str, Any], keys: frozenset[str], where: str
) -> dict[str, Any]:
    """Return what makes mlx-lm scale as transformers does."""
    kind = str(rope.get("rope_type") or rope.get("type") or "default")
    original = _original(rope, config)
    if kind == "dynamic":  # which is none up to the model's context
        return {"rope_scaling": None}
    if kind in ("default", "mrope"):
        return {}
    if not keys & {"rope_scaling", "rope_parameters"}:
        _refuse(where, "rope_type", kind)
    scaling = {**rope, "type": kind, "rope_type": kind}
    if kind in ("llama3", "yarn", "longrope"):
        scaling["original_max_position_embeddings"] = original
    if kind in ("yarn", "longrope") and (factor := rope.get("attention_factor")) is not None:
        _refuse(where, "attention_factor", factor)
    if kind == "yarn" and not (rope.get("mscale") and rope.get("mscale_all_dim")):
        scaling |= {"mscale": 1.0, "mscale_all_dim": 0.0}  # transformers takes them in pairs
    if kind != "longrope":
        return {"rope_scaling": scaling}
    # mlx-lm takes the long factors for every text; see `limited`.
    scaling["long_factor"] = rope["short_factor"]
    changes = {"rope_scaling": scaling, "original_max_position_embeddings": original}
    if factor := rope.get("factor"):
        changes["max_position_embeddings"] = round(factor * original)
    return changes


def set_untruncated_yarn(model: nn.Module, config: Mapping[str, Any]) -> None:
    """Correct YaRN's frequencies where a configuration says ``truncate: false``, as GPT-OSS's does:
    mlx-lm rounds the pairs of numbers between which it interpolates."""
    from mlx_lm.models.rope_utils import YarnRoPE

    scaling = config.get("rope_scaling")
    if not isinstance(scaling, dict) or scaling.get("truncate") is not False:
        return
    theta, original = config["rope_theta"], scaling["original_max_position_embeddings"]
    for rope in (part for part in model.modules() if isinstance(part, YarnRoPE)):
        begin, end = (
            rope.dims * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))
            for turns in (scaling.get("beta_fast", 32.0), scaling.get("beta_slow", 1.0))
        )
        begin, end = max(begin, 0), min(end, rope.dims - 1)
        scaled = mx.clip((mx.arange(rope.dims // 2) - begin) / max(end - begin, 1e-3), 0, 1)
        periods = theta ** (mx.arange(0, rope.dims, 2) / rope.dims)
        rope._freqs = periods / (scaled / scaling["factor"] + 1 - scaled)


def _original(rope: Mapping[str, Any], config: Mapping[str, Any]) -> int | None:
    """Return the context that a model had before its rotary embedding was scaled."""
    name = "original_max_position_embeddings"
    return config.get(name) or rope.get(name) or config.get("max_position_embeddings")


def _refuse(where: str, name: str, value: Any) -> NoReturn:
    raise UnsupportedModelError(
        f"{where}: {name} is {brief(value)}, which mlx-lm does not compute for this architecture:"
        " use another model, or a newer mlx-lm"
    )
