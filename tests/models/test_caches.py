"""Caches of one sequence and of a batch: what is shared, what is copied, what cannot be done."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import ChunkedKVCache, KVCache, QuantizedKVCache, RotatingKVCache

from entropix_mlx.models import caches
from entropix_mlx.models.base import LanguageModel
from tests.architectures import WINDOW, make


def filled(model: LanguageModel, length: int):
    cache = model.make_cache()
    model(mx.array([list(range(1, length + 1))]), cache, measure=False)
    return cache


@pytest.mark.parametrize("kind", ["llama", "gemma3_text", "qwen3_next", "mamba2"])
def test_a_copy_is_not_changed_by_later_passes(kind):
    model = LanguageModel(*make(kind))
    cache = filled(model, 12)
    kept = caches.copy(cache)
    expected = model(mx.array([[7]]), caches.copy(cache)).logits
    for token in (3, 4, 5):
        mx.eval(model(mx.array([[token]]), cache).logits)
    np.testing.assert_array_equal(model(mx.array([[7]]), kept).logits, expected)


def test_one_sequence_is_a_batch_of_one_without_padding():
    model = LanguageModel(*make("llama"))
    cache = filled(model, 5)
    assert caches.merge([cache]) is cache
    batch = caches.extend(cache, filled(model, 9))
    assert all(isinstance(layer, KVCache) for layer in caches.keep(batch, [1]))


def test_a_filled_window_takes_nothing_back():
    model = LanguageModel(*make("gemma3_text"))
    assert any(isinstance(layer, RotatingKVCache) for layer in model.make_cache())
    assert caches.can_trim(filled(model, WINDOW - 1))
    full = filled(model, WINDOW + 1)
    assert not caches.can_trim(full)
    with pytest.raises(ValueError, match="token"):
        caches.trim(full, 1)


@pytest.mark.parametrize("layer", [QuantizedKVCache(), ChunkedKVCache(8)])
def test_caches_that_mlx_lm_does_not_pad_cannot_be_rows(layer):
    assert not caches.can_merge([KVCache(), layer])


def test_bytes_are_those_of_keys_and_values():
    model = LanguageModel(*make("llama"))
    cache = filled(model, 5)
    held = sum(array.nbytes for array in caches.arrays(cache))
    assert held >= 5 * model.cache_bytes_per_token
    assert model.cache_bytes_per_token == 2 * 2 * 2 * 8 * 4  # layers, keys and values, heads, width
