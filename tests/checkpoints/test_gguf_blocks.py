"""Packed tensors of GGUF files, against the gguf package's dequantizers and MLX's own reader."""

import sys

import gguf
import mlx.core as mx
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from entropix_mlx.checkpoints.gguf.file import open_gguf
from entropix_mlx.checkpoints.loading import load
from entropix_mlx.conversion.convert import convert
from entropix_mlx.errors import UnsupportedModelError
from tests.conftest import make_tiny_model
from tests.folders import metadata_of, tensors_of

ROWS, WIDTH = 5, 512


def random_blocks(kind):
    """Return random packed rows whose scales are small positive numbers."""
    generator = np.random.default_rng(0)
    numbers, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = generator.integers(0, 256, (ROWS, WIDTH // numbers, size), dtype=np.uint8)
    scales = {Kind.Q2_K: [80, 82], Kind.Q3_K: [108], Kind.Q6_K: [208], Kind.Q5_1: [0, 2]}
    both = (Kind.Q4_1, Kind.Q4_K, Kind.Q5_K)
    for place in scales.get(kind, [0, 2] if kind in both else [0]):
        small = generator.uniform(0.01, 0.1, blocks.shape[:2]).astype(np.float16)
        blocks[..., place : place + 2] = small[..., None].view(np.uint8)
    return blocks.reshape(ROWS, -1)


def write(path, kind, blocks):
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_tensor("token_embd.weight", blocks, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return open_gguf(path).tensors


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q8_0"])
def test_simple_kinds_stay_packed_and_exact(tmp_path, name):
    kind = Kind[name]
    blocks = random_blocks(kind)
    parts = {key.split(".")[1]: t.read() for key, t in write(tmp_path / "a", kind, blocks).items()}
    parts = {key: a.astype(mx.float32) if key != "weight" else a for key, a in parts.items()}
    bits = 8 if kind is Kind.Q8_0 else 4
    unpacked = mx.dequantize(parts["weight"], parts["scales"], parts["biases"], 32, bits)
    np.testing.assert_allclose(unpacked, gguf.dequantize(blocks, kind), rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("name", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q5_0", "Q5_1"])
def test_other_kinds_become_float16(tmp_path, name):
    kind = Kind[name]
    blocks = random_blocks(kind)
    (tensor,) = write(tmp_path / "a.gguf", kind, blocks).values()
    found = tensor.read()
    assert (found.dtype, found.shape) == (mx.float16, (ROWS, WIDTH))
    assert tensor.packed_as == name
    expected = gguf.dequantize(blocks, kind)
    np.testing.assert_allclose(found.astype(mx.float32), expected, rtol=1e-3, atol=1e-4)
    if name in ("Q2_K", "Q6_K"):  # an independent reader knows these
        theirs = mx.load(str(tmp_path / "a.gguf"))["token_embd.weight"].astype(mx.float32)
        np.testing.assert_allclose(found.astype(mx.float32), theirs, rtol=2e-3, atol=1e-2)


@pytest.mark.bfloat16
def test_bfloat16(tmp_path):
    weight = mx.random.normal((4, 64), key=mx.random.key(0)).astype(mx.bfloat16)
    blocks = np.array(weight.view(mx.uint8))
    (tensor,) = write(tmp_path / "a.gguf", Kind.BF16, blocks).values()
    assert tensor.dtype == mx.bfloat16
    assert mx.array_equal(tensor.read(), weight).item()


@pytest.mark.parametrize("dtype", [mx.float16, mx.float32])
def test_dense_kinds_keep_their_type(tmp_path, dtype):
    tensors = {name: x.astype(dtype) for name, x in tensors_of(make_tiny_model()).items()}
    mx.save_gguf(str(tmp_path / "a.gguf"), tensors, {"general.architecture": "llama"})
    read = open_gguf(tmp_path / "a.gguf").tensors
    assert read.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert read[name].read().dtype == dtype
        assert mx.array_equal(read[name].read(), tensor).item()


def test_many_rows_are_read_in_pieces(tmp_path):
    weight = mx.random.normal((2500, 32), key=mx.random.key(0))
    mx.save_gguf(str(tmp_path / "a.gguf"), {"a.weight": weight})
    assert mx.array_equal(open_gguf(tmp_path / "a.gguf").tensors["a.weight"].read(), weight).item()


def test_without_the_package_its_kinds_are_refused(tmp_path, monkeypatch):
    write(tmp_path / "a.gguf", Kind.Q4_K, random_blocks(Kind.Q4_K))
    for module in ("gguf", "gguf.constants"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UnsupportedModelError, match=r"packed as Q4_K.*pip install gguf"):
        open_gguf(tmp_path / "a.gguf")


@pytest.mark.parametrize("kind", ["qwen2", "qwen3"])
def test_qwen_files(tmp_path, kind):
    model = make_tiny_model(model_type=kind, tie_word_embeddings=False)
    metadata = {key.replace("llama.", f"{kind}."): x for key, x in metadata_of(model).items()}
    metadata |= {"general.architecture": kind, "tokenizer.ggml.pre": "qwen2"}
    mx.save_gguf(str(tmp_path / "a.gguf"), tensors_of(model), metadata)
    tokens = mx.array([[5, 1, 200, 77, 3]])
    expected = model(tokens).logits
    loaded, _ = load(tmp_path / "a.gguf")
    np.testing.assert_allclose(loaded(tokens).logits, expected, rtol=1e-4, atol=1e-3)
    out = convert(tmp_path / "a.gguf", tmp_path / "out")
    again, tokenizer = load(out)
    np.testing.assert_array_equal(again(tokens).logits, loaded(tokens).logits)
    assert tokenizer.encode("12 e\u0301")[1:] == tokenizer.encode("12 \u00e9")[1:]
