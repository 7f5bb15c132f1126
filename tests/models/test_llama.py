"""The model, against mlx-lm's Llama on the same weights, and its scores against NumPy."""

from dataclasses import asdict

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mlx.utils import tree_map
from mlx_lm.models import llama as reference

from entropix_mlx.models.llama.weight_layout import arranged
from tests.conftest import make_tiny_model
from tests.folders import LLAMA3

CONFIGS = st.fixed_dictionaries(
    {
        "num_key_value_heads": st.sampled_from([1, 2, 4]),
        "head_dim": st.sampled_from([2, 6, 8, 20]),
        "num_hidden_layers": st.integers(1, 4),
        "attention_bias": st.booleans(),
        "mlp_bias": st.booleans(),
        "tie_word_embeddings": st.booleans(),
        "rope_scaling": st.sampled_from([None, LLAMA3, {"rope_type": "linear", "factor": 2.0}]),
        "rope_theta": st.sampled_from([10000.0, 500000.0]),
        "rope_traditional": st.booleans(),
    }
)


def mlx_lm_twin(model, **packing):
    """Return mlx-lm's Llama with a model's weights, which may be packed."""
    arguments = reference.ModelArgs.from_dict({"model_type": "llama"} | asdict(model.config))
    twin = reference.Model(arguments)
    if packing:
        nn.quantize(twin, **packing)
    twin.update(model.parameters())
    return twin


def tokens_of(count, vocab=258, seed=0):
    return mx.array(np.random.default_rng(seed).integers(0, vocab, size=(1, count)))


@given(changes=CONFIGS, length=st.integers(1, 40), seed=st.integers(0, 1000))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_logits_equal_mlx_lms(changes, length, seed):
    model = make_tiny_model(seed, **changes)
    tokens = tokens_of(length, seed=seed)
    expected = mlx_lm_twin(model)(tokens)
    difference = mx.abs(model(tokens).logits - expected).max().item()
    assert difference <= 1e-3 * max(1.0, mx.abs(expected).max().item() / 100)


@pytest.mark.parametrize("layers", ["last", "all"])
def test_one_by_one_equals_all_at_once(tiny_model, layers):
    tokens = tokens_of(24)
    at_once = tiny_model(tokens, attention_layers=layers)
    cache = tiny_model.make_cache()
    tiny_model(tokens[:, :11], cache)
    for i in range(11, 24):
        forward = tiny_model(tokens[:, i : i + 1], cache, layers)
    np.testing.assert_allclose(forward.logits[:, -1], at_once.logits[:, -1], rtol=1e-4, atol=1e-3)
    for one, other in zip(forward.scores, at_once.scores, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-3)


def test_scores_are_the_last_querys_scaled_dot_products():
    model = make_tiny_model(num_hidden_layers=1)
    tokens = tokens_of(9)
    (scores,) = model(tokens).scores
    attention = model.model.layers[0].self_attn
    x = model.model.layers[0].input_layernorm(model.model.embed_tokens(tokens))
    split = lambda y: y.reshape(1, 9, -1, 8).swapaxes(1, 2)  # noqa: E731
    queries = np.array(attention.rope(split(attention.q_proj(x))), np.float64)[0, :, -1]
    keys = np.array(attention.rope(split(attention.k_proj(x))), np.float64)[0]
    expected = [keys[head // 2] @ queries[head] / np.sqrt(8) for head in range(4)]
    assert scores.shape == (1, 4, 9)
    np.testing.assert_allclose(scores[0], expected, rtol=1e-3, atol=1e-3)


def test_all_layers_end_with_the_last(tiny_model):
    tokens = tokens_of(5)
    every = tiny_model(tokens, attention_layers="all").scores
    (last,) = tiny_model(tokens, attention_layers="last").scores
    assert len(every) == 3
    np.testing.assert_allclose(every[-1], last, rtol=1e-5)


@pytest.mark.parametrize("bits", [4, 8])
def test_quantized_logits_equal_mlx_lms(bits):
    model = make_tiny_model(hidden_size=64, intermediate_size=64, head_dim=16)
    nn.quantize(model, group_size=32, bits=bits)
    twin = mlx_lm_twin(model, group_size=32, bits=bits)
    tokens = tokens_of(12)
    np.testing.assert_allclose(model(tokens).logits, twin(tokens), rtol=1e-3, atol=1e-3)


def test_unpacking_keeps_the_logits():
    model = make_tiny_model(hidden_size=64, intermediate_size=64, head_dim=16, attention_bias=True)
    nn.quantize(model, group_size=32, bits=4)
    tokens = tokens_of(12)
    expected = np.array(model(tokens).logits)
    unpacked = tree_map(
        lambda layer: arranged(layer, unpack=True),
        model.leaf_modules(),
        is_leaf=nn.Module.is_module,
    )
    model.update_modules(unpacked)
    assert isinstance(model.model.layers[0].mlp.up_proj, nn.Linear)
    np.testing.assert_allclose(model(tokens).logits, expected, rtol=1e-3, atol=1e-3)


def test_a_batch_is_its_rows(tiny_model):
    tokens = mx.concatenate([tokens_of(7, seed=1), tokens_of(7, seed=2)])
    forward = tiny_model(tokens)
    for row in range(2):
        alone = tiny_model(tokens[row : row + 1])
        np.testing.assert_allclose(forward.logits[row], alone.logits[0], rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(forward.scores[0][row], alone.scores[0][0], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "dtype", [mx.float16, pytest.param(mx.bfloat16, marks=pytest.mark.bfloat16)]
)
@pytest.mark.as_gpu
def test_half_precision_stays_half(dtype):
    model = make_tiny_model(scale=0.1)
    model.set_dtype(dtype)
    cache = model.make_cache()
    forward = model(tokens_of(3), cache)
    forward = model(tokens_of(1), cache)
    assert forward.logits.dtype == forward.scores[0].dtype == cache[0].keys.dtype == dtype
