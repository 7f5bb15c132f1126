"""GGUF files written by the test from a tiny model, in the format's own names and row order."""

from functools import partial

import mlx.core as mx
import numpy as np
import pytest

from entropix_mlx import load
from entropix_mlx.models.config import frequencies
from tests import folders
from tests.conftest import make_tiny_model
from tests.folders import write_gguf

LLAMA3 = folders.LLAMA3 | {"original_max_position_embeddings": 8192}


@pytest.fixture
def write(tmp_path):
    return partial(write_gguf, tmp_path / "tiny.gguf")


@pytest.mark.parametrize(
    "changes",
    [{}, {"tie_word_embeddings": False}, {"attention_bias": True, "mlp_bias": True}],
    ids=["plain", "untied", "biases"],
)
def test_logits_survive(write, changes):
    model = make_tiny_model(**changes)
    loaded, _ = load(write(model))
    assert loaded.config == model.config
    tokens = mx.array([[5, 1, 200, 77, 3]])
    np.testing.assert_allclose(loaded(tokens).logits, model(tokens).logits, rtol=1e-4, atol=1e-3)


def test_llama_3_scaling_is_recognised_by_its_factors(write):
    model = make_tiny_model(rope_scaling=LLAMA3, rope_theta=500000.0, head_dim=32)
    plain, scaled = (frequencies(32, 500000.0, scaling).turns for scaling in (None, LLAMA3))
    factors = mx.array(plain) / mx.array(scaled)
    assert factors.max().item() == pytest.approx(8)
    loaded, _ = load(write(model, **{"rope_freqs.weight": factors}))
    assert loaded.config.rope_scaling == LLAMA3
    tokens = mx.array([[5, 1, 200, 77, 3]])
    np.testing.assert_allclose(loaded(tokens).logits, model(tokens).logits, rtol=1e-4, atol=1e-3)


def test_the_tokenizer_knows_its_special_tokens(write):
    _, tokenizer = load(write(make_tiny_model()))
    tokens = tokenizer.encode("It's 1234</s>")
    assert tokens[0] == 256
    assert tokens[-1] == 257
    assert tokenizer.decode(tokens[1:-1]) == "It's 1234"
    assert tokenizer.eos_token_ids == {257}
    assert not tokenizer.has_chat_template


@pytest.mark.parametrize(
    ("splitting", "says", "begins"),
    [
        ("llama-bpe", None, True),
        ("llama-bpe", False, False),
        ("smollm", None, False),
        ("smollm", True, True),
    ],
)
def test_a_text_begins_as_llama_cpp_begins_it(write, splitting, says, begins):
    key = "tokenizer.ggml.add_bos_token"
    changes = {"tokenizer.ggml.pre": splitting} | ({} if says is None else {key: mx.array(says)})
    without = [key] if says is None else []
    _, tokenizer = load(write(make_tiny_model(), without, **changes))
    assert (tokenizer.encode("Hi")[0] == 256) is begins
