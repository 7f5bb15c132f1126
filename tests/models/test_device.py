"""What a model needs of the machine: the form of its weights, memory, and threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from entropix_mlx.models import caches, device
from entropix_mlx.models.base import LanguageModel
from tests.architectures import make

TOKENS = mx.array([[3, 1, 4, 1, 5]])


def in_a_thread(function):
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(function).result()


def arrange(inner: nn.Module, unpack: bool | None = None) -> None:
    device.compute_in_float32(inner, unpack)
    device.read_weights(inner)


def logits(model: LanguageModel) -> np.ndarray:
    return np.array(model(TOKENS, model.make_cache()).logits.astype(mx.float32))


@pytest.mark.parametrize("kind", ["llama", "qwen3_moe"])
def test_arranged_weights_give_the_same_logits(kind):
    inner, config = make(kind, hidden_size=64, moe_intermediate_size=64, intermediate_size=64)
    nn.quantize(inner, 32, 4, class_predicate=lambda _, part: hasattr(part, "to_quantized"))
    expected = logits(LanguageModel(inner, config))
    arrange(inner, unpack=False)
    packed = LanguageModel(inner, config)
    assert any("scales" in part for part in packed.inner.modules())
    np.testing.assert_allclose(logits(packed), expected, atol=1e-3)
    arrange(inner)
    dense = LanguageModel(inner, config)
    assert not any("scales" in part for part in dense.inner.modules())
    np.testing.assert_allclose(logits(dense), expected, atol=1e-3)


def test_a_cpu_computes_in_float32():
    inner, config = make("llama")
    inner.set_dtype(mx.bfloat16)
    assert LanguageModel(inner, config).dtype == mx.bfloat16
    arrange(inner)
    assert LanguageModel(inner, config).dtype == mx.float32


def test_precision_is_that_of_most_weights():
    wide = {"hidden_size": 64, "intermediate_size": 64, "head_dim": 16}
    inner, config = make("llama", **wide)
    assert LanguageModel(inner, config).precision == "float32"
    nn.quantize(inner, 32, 8, class_predicate=lambda name, _: name.endswith("q_proj"))
    assert LanguageModel(inner, config).precision == "float32"
    nn.quantize(inner, 32, 4, class_predicate=lambda _, part: isinstance(part, nn.Linear))
    assert LanguageModel(inner, config).precision == "4 bits in groups of 32"


def test_metal_keeps_as_much_memory_wired_as_it_recommends(monkeypatch):
    limits = []
    monkeypatch.setattr(mx, "set_wired_limit", limits.append)
    device.wire_memory()
    assert limits == []
    recommended = {"max_recommended_working_set_size": 1000}
    monkeypatch.setattr(mx, "device_info", lambda: recommended)
    device.wire_memory()
    assert limits == [1000]
    assert device.usable_memory() == 1000


def test_caches_get_half_of_what_the_weights_leave(monkeypatch):
    model = LanguageModel(*make("llama"))
    monkeypatch.setattr(mx, "get_active_memory", lambda: 5000)
    for usable, tokens in ((5000 + 20 * model.cache_bytes_per_token, 10), (4000, 0)):
        monkeypatch.setattr(device, "usable_memory", lambda usable=usable: usable)
        assert device.cache_tokens(model) == tokens


@pytest.mark.parametrize("kind", ["llama", "minicpm3", "gpt_oss", "deepseek_v2", "qwen3_5"])
def test_a_model_loaded_in_one_thread_generates_in_others(kind):
    def load() -> LanguageModel:
        model = LanguageModel(*make(kind))
        model.warm_up()
        return model

    model = in_a_thread(load)
    cache = model.make_cache()

    def advance():
        output = model(TOKENS[:, :1], cache)
        mx.async_eval(output.logits, caches.arrays(cache))
        return output.logits

    found = [np.array(in_a_thread(advance)) for _ in range(3)]
    assert np.isfinite(found).all()
