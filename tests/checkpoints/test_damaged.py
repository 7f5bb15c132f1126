"""Damaged folders: each one gives one error that names what is wrong, and nothing is written."""

import json
import struct

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from entropix_mlx import load
from entropix_mlx.checkpoints.convert import convert
from entropix_mlx.errors import (
    EntropixError,
    ModelNotFoundError,
    TokenizerError,
    UnsupportedModelError,
    WeightsError,
)
from tests.conftest import make_tiny_model
from tests.folders import edit_json, write_folder

NORM = "model.layers.1.input_layernorm.weight"
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"


def edits(name, **changes):
    """Return a damage: keys of a file's object have other values; ``...`` removes one."""
    return lambda path: edit_json(path / name, **changes)


def holds(name, content):
    """Return a damage: a file has another content."""
    content = content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content
    return lambda path: (path / name).write_bytes(content)


def lacks(*names):
    """Return a damage: some files are not there."""
    return lambda path: [(path / name).unlink() for name in names]


def overwrites(form, value, after=b""):
    """Return a damage: other bytes behind a text in the first file of weights."""

    def damage(path):
        content = bytearray((path / FIRST).read_bytes())
        struct.pack_into(form, content, content.index(after) + len(after), value)
        (path / FIRST).write_bytes(content)

    return damage


def cuts(end):
    return lambda path: (path / FIRST).write_bytes((path / FIRST).read_bytes()[:end])


def stores(name, change):
    """Return a damage: a tensor of the folder is another array, or none where `change` is None."""

    def damage(path):
        place = json.loads((path / INDEX).read_text())["weight_map"].get(name, FIRST)
        weights = load_file(path / place)
        old = weights.pop(name, None)
        save_file(weights | ({name: change(old)} if change else {}), path / place)

    return damage


CONFIGURATIONS = [
    ({"model_type": "no_such"}, UnsupportedModelError, "no_such"),
    ({"model_type": "cache"}, UnsupportedModelError, "cache"),
    ({"model_type": "../x"}, UnsupportedModelError, "../x"),
    ({"model_type": ...}, UnsupportedModelError, "None"),
    ({"model_type": "lfm2"}, UnsupportedModelError, "block_dim|conv"),
    ({"model_type": "gemma2"}, UnsupportedModelError, "gemma|layernorm"),
    ({"model_file": "x.py"}, UnsupportedModelError, r"x\.py"),
    ({"hidden_act": "relu"}, UnsupportedModelError, "hidden_act"),
    ({"num_hidden_layers": 10**7}, WeightsError, "num_hidden_layers"),
    ({"num_hidden_layers": "3"}, WeightsError, "num_hidden_layers"),
    ({"num_hidden_layers": 4}, UnsupportedModelError, r"model\.layers\.3"),
    ({"num_hidden_layers": 2}, UnsupportedModelError, r"model\.layers\.2"),
    ({"vocab_size": 10**12}, WeightsError, "vocab_size"),
    ({"intermediate_size": 64}, UnsupportedModelError, "_proj.weight"),
    ({"vocab_size": 300}, UnsupportedModelError, "embed_tokens.weight"),
    ({"hidden_size": ...}, UnsupportedModelError, "hidden_size"),
    ({"hidden_size": "32"}, UnsupportedModelError, "source"),
    ({"quantization": 4}, UnsupportedModelError, "source"),
    ({"quantization_config": {"quant_method": "gptq", "bits": 3}}, UnsupportedModelError, "bits"),
]
BROKEN_JSON = ["", "{", "[1]", "[" * 100_000, "null", "\udcff"]
END_IDS = ["x", [2, "a"], [2, None], {"2": 1}, 2.5, True, [[2]]]
DAMAGES = [
    *((edits("config.json", **changes), *error) for changes, *error in CONFIGURATIONS),
    *((holds("config.json", text), WeightsError, r"config\.json") for text in BROKEN_JSON),
    (lacks("config.json"), ModelNotFoundError, r"config\.json is missing"),
    (lacks(FIRST, SECOND), WeightsError, r"no model\*\.safetensors file"),
    (lacks(FIRST), UnsupportedModelError, "source"),
    *((cuts(end), WeightsError, FIRST) for end in (0, 4, 100, -100)),
    *((overwrites("<Q", length), WeightsError, FIRST) for length in (2**60, 2**64 - 1, 10**9, 0)),
    (holds(FIRST, struct.pack("<Q", 8) + b'["list"]'), WeightsError, FIRST),
    (overwrites("3s", b"F16", b'"dtype":"'), WeightsError, FIRST),
    (stores(NORM, lambda old: old[1:].copy()), UnsupportedModelError, NORM),
    (stores(NORM, None), UnsupportedModelError, NORM),
    (stores("extra", lambda _: np.zeros(3, np.float32)), UnsupportedModelError, "extra"),
    (lacks("tokenizer.json"), TokenizerError, "tokenizer"),
    *(
        (holds("tokenizer.json", text), TokenizerError, "source: the tokenizer")
        for text in ("", "{}", "[1]", '{"model": {"type": "BPE"}}', "\0" * 9)
    ),
    (edits("tokenizer_config.json", unk_token=""), TokenizerError, "source: "),
    *(
        (edits(name, eos_token_id=ids), TokenizerError, "eos_token_id")
        for ids in END_IDS
        for name in ("generation_config.json", "config.json")
    ),
    *(
        (holds("generation_config.json", text), TokenizerError, r"generation_config\.json: ")
        for text in BROKEN_JSON
    ),
]


@pytest.fixture
def source(tmp_path, byte_tokenizer):
    return write_folder(tmp_path / "source", make_tiny_model(), byte_tokenizer, shards=2)


@pytest.mark.parametrize(("damage", "error", "match"), DAMAGES)
def test_what_is_wrong_is_one_sentence_and_nothing_is_written(
    source, tmp_path, damage, error, match
):
    damage(source)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(error, match=match) as caught:
        load(source)
    assert "\n" not in str(caught.value)
    if error is not TokenizerError:
        with pytest.raises(EntropixError):
            convert(source, tmp_path / "out")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "changes",
    [
        {"layer_types": ["full_attention"] * 3},
        {"sliding_window": 4096},
        {"sliding_window": 128, "use_sliding_window": False},
    ],
)
def test_what_changes_nothing_is_not_refused(tiny_folder, changes):
    edit_json(tiny_folder / "config.json", **changes)
    assert load(tiny_folder)[0].config.max_position_embeddings == 256


def test_a_tokenizer_of_another_vocabulary(tmp_path, byte_tokenizer):
    for vocabulary in (255, 1000):
        model = make_tiny_model(vocab_size=vocabulary)
        folder = write_folder(tmp_path / f"of{vocabulary}", model, byte_tokenizer)
        with pytest.raises(TokenizerError, match=str(vocabulary)):
            load(folder)
