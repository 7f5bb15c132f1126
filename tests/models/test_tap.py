"""Attention scores against float64 NumPy, on what reached MLX's kernel."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import QuantizedKVCache

from entropix_mlx.models import caches
from entropix_mlx.models.base import LanguageModel
from entropix_mlx.models.tap import attention_scores
from tests.architectures import make

THROUGH_THE_KERNEL = (
    *("llama", "qwen3", "gpt2", "gemma3_text", "cohere2", "olmo3", "gpt_oss", "llama4_text"),
    *("deepseek_v2", "deepseek_v3", "minicpm3", "qwen3_next", "falcon_h1"),
)


def exact(queries, keys, scale, mask) -> np.ndarray:
    """Return the scores `(B, queries, heads, keys)` by their definition, in float64."""
    queries, keys = (np.array(x.astype(mx.float32), np.float64) for x in (queries, keys))
    keys = np.repeat(keys, queries.shape[1] // keys.shape[1], axis=1)
    scores = scale * queries @ keys.swapaxes(-1, -2)
    length, count = scores.shape[-2:]
    if isinstance(mask, str):
        mask = mx.array(np.tri(length, count, count - length, dtype=bool))
    if mask is not None and mask.dtype == mx.bool_:
        scores = np.where(np.array(mask), scores, -np.inf)
    elif mask is not None:
        added = np.array(mask.astype(mx.float32), np.float64)
        scores = np.where(added < -1e30, -np.inf, scores + added)
    return scores.swapaxes(1, 2)


@pytest.fixture
def kernel_calls(monkeypatch):
    """The arguments of every call of MLX's kernel."""
    original, calls = mx.fast.scaled_dot_product_attention, []

    def noting(queries, keys, values, *, scale, mask=None, sinks=None):
        # A cache may hand out its own array, and write to it in the next pass.
        calls.append((queries, mx.array(keys), scale, mask))
        return original(queries, keys, values, scale=scale, mask=mask, sinks=sinks)

    monkeypatch.setattr(mx.fast, "scaled_dot_product_attention", noting)
    return calls


@pytest.mark.parametrize("kind", THROUGH_THE_KERNEL)
def test_scores_are_those_of_the_kernels_arguments(kind, kernel_calls):
    model = LanguageModel(*make(kind))
    rows = []
    for tokens in ([3, 1, 4], [1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9]):
        cache = model.make_cache()
        kernel_calls.clear()
        scores = model(mx.array([tokens]), cache, "all", queries=2).scores
        for found, (queries, keys, scale, mask) in zip(scores, kernel_calls, strict=True):
            expected = exact(queries, keys, scale, mask)[:, -2:]
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
        rows.append(cache)
    kernel_calls.clear()
    scores = model(mx.array([[1], [2]]), caches.merge(rows), "all").scores
    for found, call in zip(scores, kernel_calls, strict=True):
        np.testing.assert_allclose(found, exact(*call), rtol=1e-4, atol=1e-4)
        assert found.dtype == mx.float32


@pytest.mark.parametrize("kind", ["gemma2", "olmo2", "gpt_bigcode", "qwen3_5"])
def test_hidden_keys_and_padding_get_no_share(kind):
    model = LanguageModel(*make(kind))
    tokens = mx.array([[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]])
    for layer in model(tokens, model.make_cache(), "all", queries=12).scores:
        shares = np.array(mx.softmax(layer, axis=-1))[0]
        assert np.allclose(shares.sum(-1), 1, atol=1e-5)
        later = np.triu(np.ones((12, layer.shape[-1]), bool), 1)
        assert (shares.swapaxes(0, 1)[:, later] == 0).all()


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16])
def test_half_precision_loses_nothing_that_float32_keeps(dtype):
    mx.random.seed(0)
    queries = (4 * mx.random.normal((2, 4, 1, 64))).astype(dtype)
    keys = mx.random.normal((2, 2, 50, 64)).astype(dtype)
    found = attention_scores(queries, keys, 0.5)
    assert found.dtype == mx.float32
    np.testing.assert_allclose(found, exact(queries, keys, 0.5, None), atol=1e-3)


@pytest.mark.parametrize("bits", [4, 8])
def test_quantized_keys_are_measured_as_they_are_kept(bits):
    model = LanguageModel(*make("llama", head_dim=64))
    plain, packed = model.make_cache(), model.make_cache()
    tokens = mx.array([[3, 1, 4, 1, 5, 9, 2, 6]])
    before = model(tokens, plain, "all", queries=8).scores
    model.quantize_cache(bits, 64)
    assert not model.can_batch
    after = model(tokens, packed, "all", queries=8).scores
    assert all(isinstance(layer, QuantizedKVCache) for layer in packed)
    tolerance = {4: 3, 8: 0.2}[bits]
    np.testing.assert_allclose(after[0], before[0], atol=tolerance)
    layer = packed[0]
    keys = mx.dequantize(*layer.keys_and_values()[0], group_size=64, bits=bits)
    assert keys.shape[2] == tokens.size
    caches.trim(packed, 1)
    again = model(tokens[:, -1:], packed, "all").scores
    np.testing.assert_allclose(again[0], after[0][:, -1:], atol=1e-3)


def test_a_cache_that_cannot_be_quantized_is_refused():
    for kind in ("gemma3_text", "mamba"):
        with pytest.raises(NotImplementedError):
            LanguageModel(*make(kind)).quantize_cache(8)
    with pytest.raises(ValueError, match="group"):
        LanguageModel(*make("llama", head_dim=24)).quantize_cache(8)
