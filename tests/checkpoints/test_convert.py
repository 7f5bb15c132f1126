"""Conversion: folders that this package and mlx-lm load, all of one or nothing."""

import signal
import subprocess
import sys

import mlx.core as mx
import mlx.nn as nn
import mlx_lm
import numpy as np
import pytest

from entropix_mlx import cli, load
from entropix_mlx.checkpoints.convert import convert
from entropix_mlx.errors import ModelNotFoundError, OutputError
from tests.conftest import make_tiny_model
from tests.folders import write_folder, write_gguf

TOKENS = mx.array([[1, 2, 3, 200, 5]])


def logits_of(model):
    return model(TOKENS, model.make_cache()).logits


@pytest.fixture(params=["folder", "gguf"])
def source(request, tmp_path, byte_tokenizer):
    model = make_tiny_model(hidden_size=64, head_dim=16, tie_word_embeddings=False)
    if request.param == "gguf":
        return write_gguf(tmp_path / "tiny.gguf", model)
    return write_folder(tmp_path / "source", model, byte_tokenizer, shards=2)


def test_a_copy_computes_the_same(source, tmp_path):
    out = convert(source, tmp_path / "out")
    model, tokenizer = load(out)
    original, own = load(source)
    np.testing.assert_allclose(logits_of(model), logits_of(original), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(mlx_lm.load(str(out))[0](TOKENS), logits_of(model), atol=1e-3)
    assert tokenizer.encode("é 12!") == own.encode("é 12!")
    assert tokenizer.eos_token_ids == own.eos_token_ids


@pytest.mark.parametrize(("bits", "group_size"), [(3, 32), (4, 64), (8, 32)])
def test_quantized_and_unpacked_again(source, tmp_path, bits, group_size):
    packed = convert(source, tmp_path / "packed", bits=bits, group_size=group_size)
    model, _ = load(packed, dequantize=False)
    layer = model.inner.model.layers[0].mlp.up_proj
    assert isinstance(layer, nn.QuantizedLinear)
    assert (layer.bits, layer.group_size) == (bits, group_size)
    dense = convert(packed, tmp_path / "dense", dequantize=True)
    unpacked = load(dense)[0]
    assert not any(isinstance(part, nn.QuantizedLinear) for part in unpacked.inner.modules())
    np.testing.assert_allclose(logits_of(unpacked), logits_of(model), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_type(source, tmp_path, dtype):
    out = convert(source, tmp_path / "out", dtype=dtype)
    weights = mx.load(str(out / "model.safetensors"))
    assert {array.dtype for array in weights.values()} == {getattr(mx, dtype)}


def test_what_is_there_is_not_replaced(source, tmp_path):
    out = convert(source, tmp_path / "out")
    (tmp_path / "a file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    for there in (out, tmp_path / "a file", tmp_path / "link"):
        with pytest.raises(OutputError, match="exists"):
            convert(source, there)
    with pytest.raises(ModelNotFoundError):
        convert(tmp_path / "absent", tmp_path / "new")


def test_a_failure_leaves_nothing(source, tmp_path, monkeypatch):
    names = sorted(path.name for path in tmp_path.iterdir())

    def fail(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(mx, "save_safetensors", fail)
    with pytest.raises(OutputError, match="disk is full"):
        convert(source, tmp_path / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == names


@pytest.mark.slow
def test_a_killed_conversion_leaves_nothing_half(tmp_path, byte_tokenizer):
    source = write_folder(tmp_path / "source", make_tiny_model(), byte_tokenizer)
    code = (
        "import time, sys, mlx.core as mx; from entropix_mlx.checkpoints.convert import convert\n"
        "save = mx.save_safetensors\n"
        "def slow(*a, **k):\n"
        "    save(*a, **k); print('saved', file=sys.__stdout__, flush=True); time.sleep(60)\n"
        "mx.save_safetensors = slow; convert(sys.argv[1], sys.argv[2])"
    )
    command = [sys.executable, "-c", code, str(source), str(tmp_path / "out")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"saved\n"
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    process.stdout.close()
    assert not (tmp_path / "out").exists()
    load(convert(source, tmp_path / "out"))


def test_the_command(source, tmp_path, capsys):
    out = tmp_path / "out"
    arguments = ["convert", "--hf-path", str(source), "--mlx-path", str(out)]
    assert cli.main([*arguments, "-q", "--q-bits", "8", "--q-group-size", "32"]) == 0
    assert capsys.readouterr().out == f"{out}\n"
    assert cli.main(arguments) == 2
    assert cli.main([*arguments, "--q-bits", "4"]) == 2
