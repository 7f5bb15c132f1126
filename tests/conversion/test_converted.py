"""Converted folders, loaded and run by mlx-lm."""

import mlx.core as mx
import mlx_lm
import numpy as np
import pytest

from entropix_mlx import load
from entropix_mlx.conversion.convert import convert
from entropix_mlx.conversion.recipe import Recipe
from tests.conftest import make_tiny_model
from tests.folders import KINDS, write_folder

TOKENS = mx.array([[5, 1, 200, 77, 3, 3, 120]])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shards", [1, 3])
def test_every_kind_gives_mlx_lms_logits(kind, shards, byte_tokenizer, tmp_path):
    model = make_tiny_model(**KINDS[kind])
    source = write_folder(tmp_path / "source", model, byte_tokenizer, shards=shards)
    out = convert(source, tmp_path / "out")
    theirs, tokenizer = mlx_lm.load(str(out))
    ours, _ = load(source)
    np.testing.assert_array_equal(ours(TOKENS).logits, load(out)[0](TOKENS).logits)
    np.testing.assert_allclose(ours(TOKENS).logits, theirs(TOKENS), rtol=1e-3, atol=1e-3)
    assert tokenizer.encode("é!") == byte_tokenizer.encode("é!")
    assert tokenizer.eos_token_ids == {257}
    messages = [{"role": "user", "content": "Hi"}]
    assert tokenizer.apply_chat_template(messages) == byte_tokenizer.apply_chat_template(messages)


@pytest.mark.parametrize(("bits", "group_size"), [(4, 32), (8, 64), (3, 64)])
@pytest.mark.parametrize("kind", ["llama-3", "qwen2", "qwen3"])
@pytest.mark.bfloat16
def test_quantized_equals_mlx_lms_own_conversion(kind, bits, group_size, byte_tokenizer, tmp_path):
    model = make_tiny_model(**KINDS[kind] | {"hidden_size": 64, "head_dim": 16})
    source = write_folder(tmp_path / "source", model, byte_tokenizer, mx.bfloat16, shards=2)
    out = convert(source, tmp_path / "out", Recipe(bits=bits, group_size=group_size))
    mlx_lm.convert(
        str(source), str(tmp_path / "theirs"), True, q_bits=bits, q_group_size=group_size
    )
    ours, theirs = (
        dict(mx.load(str(tmp_path / name / "model.safetensors"))) for name in ("out", "theirs")
    )
    assert ours.keys() == theirs.keys()
    for name, weight in theirs.items():
        assert ours[name].dtype == weight.dtype
        assert mx.array_equal(ours[name], weight).item(), name
    loaded, tokenizer = mlx_lm.load(str(out))
    assert loaded.model.layers[0].self_attn.q_proj.bits == bits
    assert mlx_lm.generate(loaded, tokenizer, "Hi", max_tokens=4)


def test_a_quantized_source_is_unpacked_or_packed_anew(byte_tokenizer, tmp_path):
    model = make_tiny_model(hidden_size=64, intermediate_size=64)
    source = write_folder(tmp_path / "source", model, byte_tokenizer)
    packed = convert(source, tmp_path / "packed", Recipe(bits=8, group_size=32))
    dense = convert(packed, tmp_path / "dense", Recipe(dequantize=True))
    again = convert(packed, tmp_path / "again", Recipe(bits=4, group_size=64))
    expected = load(packed)[0](TOKENS).logits
    np.testing.assert_allclose(mlx_lm.load(str(dense))[0](TOKENS), expected, rtol=1e-3, atol=1e-3)
    layer = mlx_lm.load(str(again))[0].model.layers[2].mlp.up_proj
    assert (layer.bits, layer.group_size) == (4, 64)
