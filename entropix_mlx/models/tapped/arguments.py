"""What a ``config.json`` means, in the keys that a class of mlx-lm reads.

transformers' class of a configuration knows what every key means, by whichever of its names, and
what holds where it is not stated. A class of mlx-lm reads fewer keys, each by one name, and has
defaults of its own. So each key that it reads is given to it; and a key that it does not read must
say what would hold without it. Any other value is refused by name, since a model that ignores it
answers as fluently as a correct one, and wrongly.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

from ...errors import UnsupportedModelError, brief

_MENDED = "rope_parameters|rope_scaling|rope_theta|rope_local_base_freq|layer_types|sliding_window"
"""Keys that `mending` sees to, or that are given by other names."""
_SHAPES = (
    "(vocab|hidden|intermediate|.*_intermediate)_size|n_inner|head_dim|num_key_value_heads"
    "|.*_bias|use_qk_norm|tie_word_embeddings"
)
"""Keys that the shapes of the weights show: a model that ignores them does not fit its weights."""
_HARMLESS = re.compile(
    f"_.*|{_MENDED}|{_SHAPES}|.*(dropout|pdrop|_coef|_loss|token_ids?|_std|initializer.*)"
    "|(output|return|use_cache|id2label|label2id|problem|tokenizer|summary|quantization).*"
    "|(text|vision|audio)_config|is_(encoder_)?decoder|add_cross_attention"
    "|(torch_)?dtype|architectures|transformers_version|pretraining_tp|chunk_size_feed_forward"
    "|max_position_embeddings|max_window_layers|use_sliding_window|time_step_(min|max|fl.*)"
    "|use_mamba_kernels|mamba_expand|num_logits_to_keep|(mamba_)?chunk_size|block_size"
    "|sliding_window_pattern"
)
"""Keys that change no prediction: training, output, tokens, and what the other keys say too."""
_WITHOUT_TRUTH = {"rope_parameters", "rope_scaling", "partial_rotary_factor", "sliding_window"}
"""Keys that are checked of a model that transformers does not know."""

_OTHERWISE = {
    "gpt_bigcode": ("multi_query", True),
    "jamba": ("num_experts", 1),
    "ernie4_5_moe": ("moe_num_experts", 0),
    "glm4_moe_lite": ("rms_norm_eps", 1e-5),
    "falcon_h1": ("attention_in_multiplier", 1),
    "recurrent_gemma": ("rms_norm_eps", 1e-6),
}
"""By ``model_type``: a key that is read, and the one value with which the class is right.

Jamba's and Ernie's experts have other weights in transformers, and so have heads of several keys.
"""


class KnownKeys(NamedTuple):
    """The keys of a configuration that a module of mlx-lm knows, or one that it imports."""

    named: frozenset[str]
    """The fields of its classes of arguments."""
    read: frozenset[str]
    """Those that its code uses."""


@cache
def keys_of(module: ModuleType) -> KnownKeys:
    """Return the keys of a configuration that the source of a module of mlx-lm names and reads."""
    fields, used = set(), set()
    read: set[str] = set()
    tree = ast.parse(inspect.getsource(module))
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.decorator_list:
            declared = (part.target for part in node.body if isinstance(part, ast.AnnAssign))
            fields |= {target.id for target in declared if isinstance(target, ast.Name)}
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            used.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            used.add(node.value)
        elif isinstance(node, ast.ImportFrom) and node.level == 1:
            for name in [node.module] if node.module else [part.name for part in node.names]:
                imported = keys_of(import_module(f"mlx_lm.models.{name}"))
                fields |= imported.named
                read |= imported.read
    return KnownKeys(frozenset(fields), frozenset(read | fields & used))


def truth_of(config: Mapping[str, Any]) -> Any:
    """Return transformers' object of a configuration, or None where transformers has none."""
    from transformers import CONFIG_MAPPING

    try:
        return CONFIG_MAPPING[config["model_type"]](**config)
    except Exception:  # no such type, or whatever a configuration makes its class stumble over
        return None


def language_of(truth: Any) -> Any:
    """Return the part of a truth that describes the language model."""
    return getattr(truth, "text_config", truth)


def translated(
    config: Mapping[str, Any], keys: KnownKeys, truth: Any, where: str
) -> dict[str, Any]:
    """Return a configuration with every key that a class of mlx-lm reads.

    Raises:
        UnsupportedModelError: a key that the class does not read changes what is computed.
    """
    found = dict(config)
    if truth is None:
        _check_alone(config, keys, where)
        return found
    if isinstance(text := config.get("text_config"), dict):
        found["text_config"] = translated(text, keys, truth.text_config, where)
    _check_unread(config, keys.read, truth, where)
    found |= {name: value for name, value in _renamed(truth) if name in keys.named}
    for name in keys.named - found.keys() - {"rope_scaling"}:
        value = known(truth, name, known(language_of(truth), name, _NOTHING))
        if isinstance(value, bool | int | float | str | list | tuple | dict | None):
            found[name] = value
    return found


_NOTHING = object()


def known(truth: Any, name: str, default: Any = None) -> Any:
    """Return what a truth says of a key; of some keys it refuses to speak."""
    try:
        return getattr(truth, name)
    except Exception:  # it is not there, or differs from layer to layer
        return default


def ropes_of(truth: Any) -> dict[str, Any]:
    """Return the ``rope_parameters`` of each type of layer; the type of all is ``""``."""
    stated = known(truth, "rope_parameters") or {}
    by_type = {kind: part for kind, part in stated.items() if isinstance(part, dict)}
    return by_type or ({"": stated} if stated else {})


def _renamed(truth: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a truth says, by the names that only mlx-lm's classes use."""
    if heads := known(truth, "num_attention_heads"):
        yield "head_dim", known(truth, "head_dim") or known(truth, "hidden_size", 0) // heads
    yield "n_ctx", known(truth, "max_position_embeddings")
    if ropes := ropes_of(truth):
        rope = ropes.get("full_attention", next(iter(ropes.values())))
        local = ropes.get("sliding_attention", rope)
        yield from ((name, rope.get("rope_theta")) for name in ("rope_theta", "rotary_emb_base"))
        yield from (
            (n, local.get("rope_theta")) for n in ("rope_local_base_freq", "swa_rope_theta")
        )
        scaled = rope.get("rope_type", "default") != "default"
        yield "rope_scaling", {"type": rope["rope_type"], **rope} if scaled else None
        if "partial_rotary_factor" in rope:
            yield "partial_rotary_factor", rope["partial_rotary_factor"]
            yield "rotary_pct", rope["partial_rotary_factor"]
    kinds, window = known(truth, "layer_types"), known(truth, "sliding_window")
    if not kinds and window and known(truth, "use_sliding_window", True):
        yield "layer_types", ["sliding_attention"] * truth.num_hidden_layers
    elif isinstance(kinds, list) and "full_attention" in kinds:
        period = kinds.index("full_attention") + 1
        yield "full_attention_interval", period
        spelled = "L" * (period - 1) + "G"  # as Exaone's class reads it
        yield "sliding_window_pattern", spelled if truth.model_type == "exaone4" else period


def _check_unread(config: Mapping[str, Any], read: frozenset[str], truth: Any, where: str) -> None:
    """Refuse a key that is not read and has another value than it would have if nobody stated
    it."""
    stated = {name: config[name] for name in config if name in read or _HARMLESS.fullmatch(name)}
    try:
        unstated = type(truth)(**stated)
    except Exception:  # some keys only make sense together
        unstated = type(truth)()
    other_names = {name: alias for alias, name in truth.attribute_map.items()}
    without = unstated.to_dict()
    for name, value in truth.to_dict().items():
        if name in read or other_names.get(name) in read or _HARMLESS.fullmatch(name):
            continue
        if value != without.get(name, value):
            _refuse(where, name, value, f"mlx-lm ignores it, as if it were {brief(without[name])}")
    kinds = known(truth, "layer_types") or []
    if "layer_types" not in read and any(name.endswith(("_pattern", "_interval")) for name in read):
        period = (*kinds, "full_attention").index("full_attention") + 1
        if kinds != (kinds[:period] * len(kinds))[: len(kinds)] or period > len(kinds) > 0:
            _refuse(where, "layer_types", kinds, "mlx-lm takes every n-th layer for a full one")
    name, right = _OTHERWISE.get(truth.model_type, ("", None))
    if known(truth, name) != right:
        _refuse(where, name, known(truth, name), f"mlx-lm is right with {right} only")
    normalised = known(truth, "norm_topk_prob", truth.model_type == "afmoe")
    if normalised and known(truth, "num_experts_per_tok") == 1:
        _refuse(where, "num_experts_per_tok", 1, "mlx-lm does not normalise the weight of one")
    if groups := known(truth, "n_group"):
        most = (known(truth, "n_routed_experts") or 0) // groups * known(truth, "topk_group", 1)
        if 0 < most < known(truth, "num_experts_per_tok", 0):
            _refuse(where, "num_experts_per_tok", most + 1, f"its groups have {most} experts")


def _check_alone(config: Mapping[str, Any], keys: KnownKeys, where: str) -> None:
    for name in sorted(_WITHOUT_TRUTH - keys.read):
        value = config.get(name)
        if value not in (None, 1) and config.get("use_sliding_window") is not False:
            _refuse(where, name, value, "mlx-lm ignores it")


def _refuse(where: str, name: str, value: Any, reason: str) -> None:
    raise UnsupportedModelError(
        f"{where}: {name} is {brief(value)}, and {reason}: use another model, or a newer mlx-lm"
    )
