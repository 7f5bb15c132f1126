"""Our port of the Llama family against mlx-lm's classes and a whole Llama in float64."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten

from entropix_mlx.models import caches, llama
from entropix_mlx.models.base import LanguageModel
from tests.architectures import make

KINDS = ("llama", "mistral", "qwen2", "qwen3")
SCALINGS = {
    "plain": None,
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "longrope": {
        "rope_type": "longrope",
        "long_factor": [1.5] * 4,
        "short_factor": [1.0] * 4,
        "original_max_position_embeddings": 64,
    },
}
CHANGES = (
    {},
    {"num_key_value_heads": 4},
    {"num_key_value_heads": 1},
    {"tie_word_embeddings": True},
    {"attention_bias": True, "mlp_bias": True},
    {"head_dim": 16},
    {"rope_traditional": True},
)
TOKENS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]


def both(kind: str, bits: int | None = None, **changes) -> tuple[LanguageModel, LanguageModel]:
    """Return a model of mlx-lm's class, and the port with its weights."""
    theirs, config = make(kind, **changes)
    if bits is not None:
        nn.quantize(theirs, 32, bits)
    model_class, arguments = llama.classes(config)
    ours = model_class(arguments.from_dict(config))
    if bits is not None:
        nn.quantize(ours, 32, bits)
    ours.load_weights(list(tree_flatten(theirs.parameters())))
    return LanguageModel(theirs, config), LanguageModel(ours, config)


def check(theirs: LanguageModel, ours: LanguageModel) -> None:
    """Compare a prompt and then a token of each of two rows."""
    rows: tuple[list, list] = [], []
    for prompt in (TOKENS, TOKENS[:4]):
        passes = []
        for model, mine in zip((theirs, ours), rows, strict=True):
            mine.append(model.make_cache())
            passes.append(model(mx.array([prompt]), mine[-1], "all", queries=3))
        equal(*passes)
    batches = [caches.merge(mine) for mine in rows]
    equal(*(m(mx.array([[7], [8]]), b) for m, b in zip((theirs, ours), batches, strict=True)))


def equal(theirs, ours) -> None:
    np.testing.assert_allclose(ours.logits, theirs.logits, atol=2e-4)
    for expected, found in zip(theirs.scores, ours.scores, strict=True):
        np.testing.assert_allclose(found, expected, atol=2e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_logits_and_scores_equal_mlx_lms(kind, changes):
    if kind == "qwen2" and "head_dim" not in changes:
        changes = changes | {"head_dim": 8}
    check(*both(kind, **changes))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scaling", [name for name in SCALINGS if name != "dynamic"])
def test_scaled_rotary_embeddings(kind, scaling):
    check(*both(kind, rope_scaling=SCALINGS[scaling]))


def test_dynamic_scaling_runs_row_by_row():
    theirs, ours = both("llama", rope_scaling=SCALINGS["dynamic"])
    equal(*(m(mx.array([TOKENS]), m.make_cache(), "all") for m in (theirs, ours)))
    ours.warm_up()
    assert not ours.can_batch


@pytest.mark.parametrize("bits", [4, 8])
def test_quantized_weights(bits):
    wide = {"hidden_size": 64, "intermediate_size": 64, "head_dim": 16}
    check(*both("llama", bits, **wide))


def test_a_quantized_cache():
    theirs, ours = both("llama", head_dim=64)
    for model in (theirs, ours):
        model.quantize_cache(8, 64)
    equal(*(m(mx.array([TOKENS]), m.make_cache(), "all", queries=3) for m in (theirs, ours)))


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16])
def test_half_precision_stays_half_and_scores_do_not(dtype):
    _, ours = both("llama")
    ours.inner.set_dtype(dtype)
    cache = ours.make_cache()
    logits, scores = ours(mx.array([TOKENS]), cache, "all")
    assert logits.dtype == cache[0].keys.dtype == dtype
    assert all(layer.dtype == mx.float32 for layer in scores)


def test_one_by_one_equals_all_at_once():
    _, model = both("llama")
    together = model(mx.array([TOKENS]), model.make_cache(), "all", queries=len(TOKENS))
    cache = model.make_cache()
    for place, token in enumerate(TOKENS):
        logits, scores = model(mx.array([[token]]), cache, "all")
        np.testing.assert_allclose(logits[0, 0], together.logits[0, place], atol=2e-4)
        for alone, layer in zip(scores, together.scores, strict=True):
            np.testing.assert_allclose(alone[0, 0], layer[0, place, :, : place + 1], atol=2e-4)


@pytest.mark.parametrize(
    "changes", [{"model_type": "gemma"}, {"layer_types": ["sliding_attention", "full_attention"]}]
)
def test_what_the_port_leaves_to_mlx_lm(changes):
    assert llama.ports({"model_type": "llama"})
    assert not llama.ports({"model_type": "llama"} | changes)


def test_logits_and_shares_equal_a_whole_llama_in_float64():
    _, model = both("llama")
    logits, scores = model(mx.array([TOKENS]), model.make_cache(), "all")
    expected, shares = exact(model)
    np.testing.assert_allclose(logits[0, -1], expected, atol=1e-3)
    for layer, of_layer in zip(scores, shares, strict=True):
        np.testing.assert_allclose(mx.softmax(layer, axis=-1)[0, 0], of_layer, atol=1e-4)


def exact(model: LanguageModel) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the last position's logits, and its attention `(heads, tokens)` in each layer."""
    args, weights = model.inner.args, model.inner.parameters()
    heads, kv_heads = args.num_attention_heads, args.num_key_value_heads
    count, dim = len(TOKENS), args.head_dim
    pairs = np.arange(dim // 2)
    turns = np.arange(count)[:, None] * args.rope_theta ** (-2 * pairs / dim)

    def times(x, part):
        return x @ np.array(part["weight"], np.float64).T

    def normed(x, norm):
        root = np.sqrt((x**2).mean(-1, keepdims=True) + args.rms_norm_eps)
        return x / root * np.array(norm["weight"], np.float64)

    def by_head(x, turned):
        x = x.reshape(count, -1, dim).swapaxes(0, 1)
        first, second = np.split(x, 2, axis=-1)
        cos, sin = np.cos(turns * turned), np.sin(turns * turned)
        return np.concatenate([first * cos - second * sin, first * sin + second * cos], axis=-1)

    decoder, shares = weights["model"], []
    x = np.array(decoder["embed_tokens"]["weight"], np.float64)[TOKENS]
    for layer in decoder["layers"]:
        part, mlp = layer["self_attn"], layer["mlp"]
        y = normed(x, layer["input_layernorm"])
        q, k, v = (by_head(times(y, part[f"{name}_proj"]), name != "v") for name in "qkv")
        k, v = (np.repeat(one, heads // kv_heads, axis=0) for one in (k, v))
        scores = q @ k.swapaxes(-1, -2) / np.sqrt(dim)
        scores = np.where(np.tri(count, dtype=bool), scores, -np.inf)
        share = np.exp(scores - scores.max(-1, keepdims=True))
        share /= share.sum(-1, keepdims=True)
        shares.append(share[:, -1])
        x = x + times((share @ v).swapaxes(0, 1).reshape(count, -1), part["o_proj"])
        y = normed(x, layer["post_attention_layernorm"])
        gate = times(y, mlp["gate_proj"])
        x = x + times(gate / (1 + np.exp(-gate)) * times(y, mlp["up_proj"]), mlp["down_proj"])
    return times(normed(x, decoder["norm"])[-1], weights["lm_head"]), shares
