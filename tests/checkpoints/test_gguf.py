"""GGUF files written by the test from a tiny model, in the format's own names and row order."""

import mlx.core as mx
import numpy as np
import pytest

from entropix_mlx import load
from entropix_mlx.errors import TokenizerError, UnsupportedModelError, WeightsError
from entropix_mlx.models.config import frequencies
from tests import folders
from tests.conftest import make_tiny_model
from tests.folders import metadata_of, tensors_of

LLAMA3 = folders.LLAMA3 | {"original_max_position_embeddings": 8192}


@pytest.fixture
def write(tmp_path):
    def write(model, without=(), **changes):
        tensors, metadata = tensors_of(model), metadata_of(model)
        for name, value in changes.items():
            (metadata if "." in name and not name.endswith("weight") else tensors)[name] = value
        for name in without:
            metadata.pop(name, None)
            tensors.pop(name, None)
        file = tmp_path / "tiny.gguf"
        mx.save_gguf(str(file), tensors, metadata)
        return file

    return write


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


def test_other_scalings_are_refused(write):
    model = make_tiny_model()
    with pytest.raises(UnsupportedModelError, match="rotary scaling"):
        load(write(model, **{"rope_freqs.weight": mx.array([1.0, 7.0, 3.0, 2.0])}))
    with pytest.raises(UnsupportedModelError, match=r"rotary scaling \(yarn\)"):
        load(write(model, **{"llama.rope.scaling.type": "yarn"}))


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


@pytest.mark.parametrize(
    ("without", "changes", "error", "message"),
    [
        (["llama.block_count"], {}, WeightsError, "llama.block_count is missing"),
        (["token_embd.weight"], {}, WeightsError, "token_embd.weight is missing"),
        (["blk.1.ffn_up.weight"], {}, WeightsError, "up_proj.weight is missing"),
        (["general.architecture"], {}, UnsupportedModelError, "None is not supported"),
        (["tokenizer.ggml.tokens"], {}, TokenizerError, "no tokenizer inside"),
        ([], {"tokenizer.ggml.pre": "martian"}, TokenizerError, "martian"),
        ([], {"tokenizer.ggml.model": "llama"}, TokenizerError, "cannot be rebuilt"),
        ([], {"llama.attention.head_count": mx.array(0)}, WeightsError, "head_count"),
        ([], {"llama.attention.head_count": "four"}, WeightsError, "head_count"),
        ([], {"tokenizer.ggml.eos_token_id": mx.array(9999)}, TokenizerError, "eos"),
        ([], {"tokenizer.ggml.eos_token_id": "two"}, TokenizerError, "eos"),
        ([], {"tokenizer.ggml.eot_token_id": "two"}, TokenizerError, "eot"),
        ([], {"tokenizer.ggml.eot_token_id": mx.array(-1)}, TokenizerError, "eot"),
        ([], {"tokenizer.ggml.tokens": "abc"}, TokenizerError, "are no list"),
        ([], {"tokenizer.ggml.tokens": mx.array([1, 2])}, TokenizerError, "no list of texts"),
        ([], {"tokenizer.ggml.tokens": ["a", "a"]}, TokenizerError, "bos token 256"),
        ([], {"tokenizer.ggml.merges": ["ab"]}, TokenizerError, "cannot be built"),
        ([], {"tokenizer.ggml.merges": ["a zz"]}, TokenizerError, "cannot be built"),
        ([], {"tokenizer.ggml.token_type": mx.array(5)}, TokenizerError, "token types are no list"),
        ([], {"tokenizer.ggml.pre": mx.array([5])}, TokenizerError, "5"),
        ([], {"tokenizer.chat_template": mx.array(3)}, TokenizerError, "no text"),
        ([], {"general.architecture": mx.array([1])}, UnsupportedModelError, "architecture"),
        ([], {"general.architecture": "mamba"}, UnsupportedModelError, "'mamba'"),
        ([], {"general.alignment": mx.array(3)}, WeightsError, "alignment"),
        ([], {"llama.rope.freq_base": "fast"}, WeightsError, "freq_base"),
        ([], {"llama.attention.layer_norm_rms_epsilon": mx.array(mx.nan)}, WeightsError, "epsilon"),
        ([], {"blk.0.magic.weight": mx.zeros((2,))}, UnsupportedModelError, "blk.0.magic.weight"),
    ],
)
def test_what_is_wrong_is_named(write, without, changes, error, message):
    with pytest.raises(error, match=message):
        load(write(make_tiny_model(), without, **changes))
