"""A ``config.json`` in the keys that mlx-lm's class of its architecture reads.

mlx-lm reads what transformers 4 wrote. Version 5 states the rotary embedding in another place, and
some keys mean what a class of mlx-lm does not compute. Such keys are translated, or bound the
context to where they change nothing, or are refused by name: a model that ignores a key answers as
fluently as a correct one, and wrongly.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import math
import re
import sys
from collections.abc import Mapping
from functools import cache
from types import ModuleType
from typing import Any, NoReturn

import mlx.core as mx
import mlx.nn as nn

from ..errors import UnsupportedModelError, brief

_SHARED = {"activations", "base", "cache", "rope_utils", "switch_layers", "ssm", "gated_delta"}
"""Modules of mlx-lm that read no configuration."""
_COMPUTING = (
    *("attn_logit_softcapping", "final_logit_softcapping", "logit_scale", "logits_scaling"),
    *("attention_multiplier", "embedding_multiplier", "residual_multiplier", "key_multiplier"),
    *("use_qk_norm", "qk_layernorm", "no_rope_layers", "attention_chunk_size"),
    "partial_rotary_factor",
)
"""Keys that change what a model computes: refused where a class of mlx-lm does not read them."""
_MISREAD = {"falcon_h1": "key_multiplier"}
"""By architecture: a key that mlx-lm's class reads, and forgets where it matters."""


def translated(config: dict[str, Any], where: str) -> tuple[dict[str, Any], int | None]:
    """Return a configuration for mlx-lm's class, and up to how many tokens the class is right.

    Raises:
        UnsupportedModelError: mlx-lm has no such class, or it ignores a key that matters.
    """
    module = _module(config, where)
    text = config.get("text_config")
    language = {**config, **text} if isinstance(text, dict) else config
    changes, limit = _changes(language, _source(module), where)
    if isinstance(text, dict):
        return config | {"text_config": text | changes}, limit
    parameters = inspect.signature(module.ModelArgs).parameters
    required = {name for name, each in parameters.items() if each.default is each.empty}
    required |= parameters.keys() & {"rope_theta"}
    if missing := required - config.keys() - changes.keys() - {"rope_scaling"}:
        truth = _truth(config)  # which knows them by other names, or what they are by default
        ropes = getattr(truth, "rope_parameters", None) or {}
        found = {name: getattr(truth, name, ropes.get(name)) for name in missing}
        changes |= {name: value for name, value in found.items() if value is not None}
    return config | changes, limit


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
def _source(module: ModuleType) -> str:
    """Return the source of a module of mlx-lm and of those models that it imports."""
    text = inspect.getsource(module)
    imported = re.findall(r"^from \.(\w*) import (\w+)", text, re.MULTILINE)
    names = {package or name for package, name in imported} - _SHARED
    parts = [importlib.import_module(f"mlx_lm.models.{name}") for name in sorted(names)]
    return "\n".join([text, *map(_source, parts)])


def _reads(source: str, *names: str) -> bool:
    """Return whether a source reads a key by one of some names."""
    return re.search(rf"[.\"']({'|'.join(names)})\b", source) is not None


def _changes(
    config: Mapping[str, Any], source: str, where: str
) -> tuple[dict[str, Any], int | None]:
    changes, limit = _ropes(config, source, where)
    window: Any = config.get("sliding_window")
    kinds = config.get("layer_types")
    slides = type(window) is int and 0 < window < config.get("max_position_embeddings", math.inf)
    slides = slides and config.get("use_sliding_window") is not False
    if slides and (not kinds or "sliding_attention" in kinds):
        # Mistral's states no types of layers, without which mlx-lm's class of Llama has no windows.
        is_llama = not kinds and config.get("model_type") == "mistral"
        if is_llama or not _reads(source, "sliding_window", "attention_window_size"):
            limit = min(window, limit or window)
    if (
        kinds
        and not _reads(source, "layer_types")
        and _reads(source, r"\w*_pattern", "full_attention_interval")
    ):
        period = [*kinds, "full_attention"].index("full_attention") + 1
        if kinds != (kinds[:period] * len(kinds))[: len(kinds)]:
            _refuse(where, "layer_types", kinds)
        spelled = "L" * (period - 1) + "G"  # as Exaone's class reads it
        is_exaone = config.get("model_type") == "exaone4"
        changes["sliding_window_pattern"] = spelled if is_exaone else period
        changes["full_attention_interval"] = period
    for name in _COMPUTING:
        if config.get(name) not in (None, False, 1, []) and not _reads(source, name):
            _refuse(where, name, config[name])
    if config.get(misread := _MISREAD.get(str(config.get("model_type")), ""), 1) != 1:
        _refuse(where, misread, config[misread])
    activation = str(config.get("hidden_act") or "silu")
    unread = activation.partition("_")[0] not in source and not _reads(source, "hidden_act")
    if unread and activation not in ("silu", "swish"):
        _refuse(where, "hidden_act", activation)
    return changes, limit


def _ropes(config: Mapping[str, Any], source: str, where: str) -> tuple[dict[str, Any], int | None]:
    if not config.get("rope_parameters") and not config.get("rope_scaling"):
        return {}, None
    stated = getattr(_truth(config), "rope_parameters", None)
    stated = stated or config.get("rope_scaling") or config.get("rope_parameters")
    if not isinstance(stated, dict):
        _refuse(where, "rope_parameters", stated)
    by_kind = {kind: rope for kind, rope in stated.items() if isinstance(rope, dict)}
    rope = by_kind.get("full_attention") or next(iter(by_kind.values()), stated)
    theta = rope.get("rope_theta")
    changes: dict[str, Any] = {}
    if theta:
        changes |= {"rope_theta": theta, "rotary_emb_base": theta}
    if by_kind and not _reads(source, "rope_parameters"):
        local = by_kind.get("sliding_attention", rope)
        named = _reads(source, "rope_local_base_freq", "swa_rope_theta")
        if _type(local) != "default" or not (named or local.get("rope_theta") == theta):
            _refuse(where, "sliding_attention", local)
        changes["rope_local_base_freq"] = changes["swa_rope_theta"] = local.get("rope_theta")
    part = rope.get("partial_rotary_factor")
    if part is not None and _reads(source, "partial_rotary_factor", "rotary_pct"):
        changes |= {"partial_rotary_factor": part, "rotary_pct": part}
    elif part not in (None, 1.0) and not _reads(source, "rope_parameters"):
        _refuse(where, "partial_rotary_factor", part)
    if _type(rope) == "dynamic":  # which is none up to the model's context
        changes["rope_scaling"] = None
    if _type(rope) in ("default", "mrope", "dynamic"):
        return changes, None
    if not _reads(source, "rope_scaling", "rope_parameters"):
        _refuse(where, "rope_type", _type(rope))
    scaling, limit = _scaling(rope, config, where)
    return changes | scaling, limit


def _truth(config: Mapping[str, Any]) -> Any:
    """Return transformers' object of a configuration, which knows every key by any of its names
    and all defaults; None where transformers has none."""
    from transformers import CONFIG_MAPPING

    try:
        return CONFIG_MAPPING[config["model_type"]](**config)
    except Exception:  # no such type, or whatever a configuration makes its class stumble over
        return None


def _scaling(
    rope: Mapping[str, Any], config: Mapping[str, Any], where: str
) -> tuple[dict[str, Any], int | None]:
    """Return what makes mlx-lm compute what transformers does, and up to how many tokens."""
    kind, sharpened = _type(rope), rope.get("attention_factor")
    factor: Any = rope.get("factor")
    original = config.get("original_max_position_embeddings")
    original = original or rope.get("original_max_position_embeddings")
    scaling = {**rope, "type": kind, "rope_type": kind}
    if kind in ("llama3", "yarn"):
        context = config.get("max_position_embeddings")
        scaling["original_max_position_embeddings"] = original or context
    if kind == "yarn":
        if not (rope.get("mscale") and rope.get("mscale_all_dim")):
            scaling |= {"mscale": 1.0, "mscale_all_dim": 0.0}
        if sharpened is not None and factor > 1:
            scaling |= {"mscale": 10 * (sharpened - 1) / math.log(factor), "mscale_all_dim": 0.0}
    if kind != "longrope" or rope.get("short_factor") == rope.get("long_factor"):
        return {"rope_scaling": scaling}, None
    if sharpened is not None or not isinstance(original, int):
        _refuse(where, "rope_scaling", dict(rope))
    # mlx-lm takes the long factors for every text. A text that grows beyond the original context
    # would have to be read again as a whole, so that the short ones are given, up to there.
    scaling["long_factor"] = rope["short_factor"]
    changes = {"rope_scaling": scaling, "original_max_position_embeddings": original}
    if factor:
        changes["max_position_embeddings"] = round(factor * original)
    return changes, original


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


def _type(rope: Mapping[str, Any]) -> str:
    return str(rope.get("rope_type") or rope.get("type") or "default")


def _refuse(where: str, name: str, value: Any) -> NoReturn:
    raise UnsupportedModelError(
        f"{where}: {name} is {brief(value)}, which mlx-lm does not compute for this architecture:"
        " use another model, or a newer mlx-lm"
    )
