"""Damaged models: each one gives one clear message and exit code 2, and nothing is written."""

import json
import struct

import mlx.core as mx
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from entropix_mlx import cli
from tests.conftest import make_tiny_model
from tests.folders import write_folder, write_gguf

NORM = "model.layers.1.input_layernorm.weight"
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"


@pytest.fixture
def folder(tmp_path, byte_tokenizer):
    return write_folder(tmp_path / "source", make_tiny_model(), byte_tokenizer, shards=2)


@pytest.fixture
def refused(tmp_path, capsys):
    """Return a check that a model is refused, saying all of some words in one line."""

    def refused(source, *words):
        before = sorted(tmp_path.iterdir())
        out = tmp_path / "out"
        code = cli.main(["convert", "--hf-path", str(source), "--mlx-path", str(out)])
        printed, said = capsys.readouterr()
        assert (code, printed) == (2, "")
        assert said.startswith("entropix: ")
        assert said.count("\n") == 1
        for word in words:
            assert word in said
        assert sorted(tmp_path.iterdir()) == before

    return refused


def holder(folder, name):
    """Return the shard that holds a tensor."""
    index = json.loads((folder / INDEX).read_text())["weight_map"]
    return folder / index[name]


def edit_shard(file, edit):
    weights = load_file(file)
    edit(weights)
    save_file(weights, file)


def edit_index(folder, edit):
    index = json.loads((folder / INDEX).read_text())
    edit(index["weight_map"])
    (folder / INDEX).write_text(json.dumps(index))


@pytest.mark.parametrize(
    "damage",
    [
        *(lambda content, end=end: content[:end] for end in (0, 4, 100, -100)),
        *(
            lambda content, length=length: struct.pack("<Q", length) + content[8:]
            for length in (2**60, 2**63 - 1, 2**64 - 1, 10**9, 0)
        ),
        lambda _: struct.pack("<Q", 8) + b'["list"]',
        lambda content: content.replace(b'"dtype":"F32"', b'"dtype":"F16"', 1),
    ],
)
def test_a_damaged_shard(folder, refused, damage):
    content = (folder / FIRST).read_bytes()
    assert damage(content) != content
    (folder / FIRST).write_bytes(damage(content))
    refused(folder, FIRST, "cannot be read")


def test_a_wrong_type(folder, refused):
    file = holder(folder, NORM)
    edit_shard(file, lambda weights: weights.update({NORM: weights[NORM].astype(np.int32)}))
    refused(folder, file.name, NORM, "int32")
    edit_shard(file, lambda weights: weights.update({NORM: weights[NORM].astype(np.uint32)}))
    refused(folder, file.name, NORM, "uint32", "must be floating")


def test_a_missing_tensor(folder, refused):
    edit_shard(holder(folder, NORM), lambda weights: weights.pop(NORM))
    refused(folder, INDEX, NORM)
    edit_index(folder, lambda index: index.pop(NORM))
    refused(folder, "source", NORM)


def test_an_extra_tensor_and_one_in_two_shards(folder, refused):
    edit_shard(folder / FIRST, lambda weights: weights.update(extra=np.zeros(3, np.float32)))
    refused(folder, FIRST, "extra")
    edit_shard(folder / FIRST, lambda weights: weights.pop("extra"))
    edit_shard(folder / SECOND, lambda weights: weights.update(load_file(folder / FIRST)))
    refused(folder, FIRST, SECOND)


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
@pytest.mark.parametrize("bad", [mx.nan, mx.inf, -mx.inf])
def test_nan_and_infinity(tmp_path, byte_tokenizer, refused, dtype, bad):
    model = make_tiny_model()
    model.model.norm.weight = mx.where(mx.arange(32) == 7, bad, model.model.norm.weight)
    folder = write_folder(tmp_path / "source", model, byte_tokenizer, dtype)
    refused(folder, "model.safetensors", "model.norm.weight")


@pytest.mark.parametrize(
    "place",
    [
        "../secret.safetensors",
        "/etc/secret.safetensors",
        "sub/a.safetensors",
        "a\\b.safetensors",
        "a\0.safetensors",
        "absent.safetensors",
        "config.json",
        "..",
        "",
        7,
        None,
        ["x"],
    ],
)
def test_an_index_that_names_no_file_of_the_folder(folder, refused, place):
    (folder.parent / "secret.safetensors").write_bytes((folder / FIRST).read_bytes())
    edit_index(folder, lambda index: index.update({NORM: place}))
    refused(folder, INDEX, NORM)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"weight_map": []}', "[" * 100_000])
def test_a_broken_index(folder, refused, text):
    (folder / INDEX).write_text(text)
    refused(folder, INDEX)


def test_a_tokenizer_of_another_vocabulary(tmp_path, byte_tokenizer, refused):
    for vocabulary in (255, 1000):
        model = make_tiny_model(vocab_size=vocabulary)
        folder = write_folder(tmp_path / f"of{vocabulary}", model, byte_tokenizer)
        refused(folder, f"of{vocabulary}", "the tokenizer knows 258 tokens", str(vocabulary))


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"model": {"type": "BPE"}}', "\0" * 9])
def test_a_broken_tokenizer(folder, refused, text):
    (folder / "tokenizer.json").write_text(text)
    refused(folder, "source", "tokenizer")


def test_a_tokenizer_that_wants_to_run_code(folder, refused, monkeypatch):
    (folder / "tokenization_evil.py").write_text("raise SystemExit('ran')")
    file = folder / "tokenizer_config.json"
    settings = json.loads(file.read_text())
    auto_map = {"AutoTokenizer": ["tokenization_evil.Evil", None]}
    file.write_text(json.dumps(settings | {"tokenizer_class": "Evil", "auto_map": auto_map}))
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("it asked"))
    refused(folder, "source", "tokenizer cannot be read")


@pytest.fixture
def gguf(tmp_path):
    return write_gguf(tmp_path / "tiny.gguf", make_tiny_model())


@pytest.mark.parametrize(
    ("place", "value", "word"),
    [
        (0, b"GGML", "does not begin with GGUF"),
        (4, struct.pack("<I", 1), "version 1 "),
        (4, struct.pack("<I", 0x03000000), "version 50331648 "),
        (8, struct.pack("<Q", 28), "is missing"),
        (8, struct.pack("<Q", 30), "tiny.gguf"),
        (8, struct.pack("<Q", 2**60), "promises more than it holds"),
        (16, struct.pack("<Q", 2**60), "promises more than it holds"),
        (16, struct.pack("<Q", 2), "tiny.gguf"),
    ],
)
def test_a_gguf_with_a_wrong_beginning(gguf, refused, place, value, word):
    content = bytearray(gguf.read_bytes())
    content[place : place + len(value)] = value
    gguf.write_bytes(content)
    refused(gguf, "tiny.gguf", word)


@pytest.mark.parametrize(
    ("after_shape", "form", "value"),
    [(4, "<Q", 2**63), (4, "<Q", 10**6), (4, "<Q", 1), (4, "<Q", 0), (0, "<I", 4321)],
)
def test_a_gguf_with_a_wrong_offset_or_type(gguf, refused, after_shape, form, value):
    content = bytearray(gguf.read_bytes())
    name = b"blk.1.attn_norm.weight"
    place = content.index(name) + len(name) + 4 + 8 + after_shape  # dimensions, the only one
    struct.pack_into(form, content, place, value)
    gguf.write_bytes(content)
    refused(gguf, "tiny.gguf", "the tensor")


def test_a_truncated_gguf(gguf, refused):
    gguf.write_bytes(gguf.read_bytes()[:-1])
    refused(gguf, "tiny.gguf", "reaches beyond the end")
    gguf.write_bytes(b"")
    refused(gguf, "tiny.gguf", "promises more than it holds")


def test_nan_in_a_gguf(tmp_path, refused):
    model = make_tiny_model()
    model.model.norm.weight = mx.full((32,), mx.nan)
    refused(write_gguf(tmp_path / "tiny.gguf", model), "tiny.gguf", "model.norm.weight")


@pytest.mark.parametrize("name", ["../x", "a/b/c", "a/..", "a b/c", "a/b?x=1", "é/b"])
def test_what_is_no_hub_id_never_reaches_the_hub(refused, monkeypatch, name):
    monkeypatch.setattr(
        "entropix_mlx.checkpoints.locate.download", lambda _: pytest.fail("it was asked")
    )
    refused(name, "no model")
