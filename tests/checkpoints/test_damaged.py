"""Damaged models: each one gives one error that names what is wrong, and nothing is written.

A case is a format, what is done to a valid model in it, and the error. It is put to `convert`,
which reads all of a model.
"""

import json
import os
import struct
import zipfile

import mlx.core as mx
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from entropix_mlx import cli, load
from entropix_mlx.checkpoints.torch_file import open_torch_file
from entropix_mlx.conversion.convert import convert
from entropix_mlx.errors import (
    ModelNotFoundError,
    TokenizerError,
    UnsupportedModelError,
    WeightsError,
)
from tests.conftest import make_tiny_model
from tests.folders import (
    edit_json,
    pickled_tensor,
    write_folder,
    write_gguf,
    write_meta,
    write_torch,
)

NORM = "model.layers.1.input_layernorm.weight"
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"


@pytest.fixture
def make(tmp_path, byte_tokenizer):
    """Return a maker of a valid model in any format."""

    def make(format):
        path = tmp_path / {"gguf": "tiny.gguf"}.get(format, "source")
        if format == "gguf":
            return write_gguf(path, make_tiny_model())
        if format == "folder":
            return write_folder(path, make_tiny_model(), byte_tokenizer, shards=2)
        path.mkdir()
        write_meta(path, count=2)
        return path

    return make


@pytest.fixture
def refused(tmp_path):
    """Return a check that a model is refused with a message on one line, and nothing is written."""

    def refused(source, error, match):
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(error, match=match) as caught:
            convert(source, tmp_path / "out")
        assert "\n" not in str(caught.value)
        assert sorted(tmp_path.rglob("*")) == before

    return refused


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


def overwrites(place, form, *values, name=".", after=b""):
    """Return a damage: at a place, counted from the end of a text in the file, other bytes."""

    def damage(path):
        content = bytearray((path / name).read_bytes())
        struct.pack_into(form, content, content.index(after) + len(after) + place, *values)
        (path / name).write_bytes(content)

    return damage


def cuts(end, name="."):
    return lambda path: (path / name).write_bytes((path / name).read_bytes()[:end])


def holder(path, name):
    """Return the shard that holds a tensor, or the first."""
    return path / json.loads((path / INDEX).read_text())["weight_map"].get(name, FIRST)


def stores(name, change):
    """Return a damage: a tensor of the folder is another array, or none where `change` is None."""

    def damage(path):
        file = holder(path, name)
        weights = load_file(file)
        old = weights.pop(name, None)
        save_file(weights | ({name: change(old)} if change else {}), file)

    return damage


def indexes(name, place):
    """Return a damage: the index says that a tensor is elsewhere; ``...`` removes it."""

    def damage(path):
        index = json.loads((path / INDEX).read_text())["weight_map"]
        places = {key: at for key, at in (index | {name: place}).items() if at is not ...}
        edit_json(path / INDEX, weight_map=places)

    return damage


def both(*damages):
    return lambda path: [damage(path) for damage in damages]


def rewritten(*without, **changes):
    """Return a damage: a GGUF file is written without some tensors and keys, or with others."""
    changes = {
        name: mx.array(value) if isinstance(value, int | float) else value
        for name, value in changes.items()
    }
    return lambda path: write_gguf(path, make_tiny_model(), without, **changes)


WRONG_KINDS = [  # the field, and what it must not be
    *(("hidden_size", ...), ("hidden_size", "32"), ("num_attention_heads", 0), ("head_dim", 7)),
    *(("num_hidden_layers", 10**7), ("architectures", "LlamaForCausalLM"), ("layer_types", 4)),
    *(("rope_parameters", [1]), ("quantization", 4), ("tie_word_embeddings", "yes")),
]
CONFIGURATIONS = [
    ({"model_type": "no_such"}, UnsupportedModelError, "'no_such' is not supported"),
    ({"model_type": "olmo"}, UnsupportedModelError, "'olmo' is not supported"),
    ({"model_type": "cache"}, UnsupportedModelError, "'cache' is not supported"),
    ({"model_type": "../x"}, UnsupportedModelError, "'../x' is not supported"),
    ({"model_type": "lfm2"}, UnsupportedModelError, "config.json lacks 'block_dim'"),
    ({"model_type": "gemma2"}, WeightsError, "the weights do not fit"),
    ({"model_type": "gemma2", "model_file": "x.py"}, UnsupportedModelError, "code of its own"),
    ({"model_type": "gemma2", "head_dim": "x"}, UnsupportedModelError, "mlx-lm cannot run"),
    ({"model_type": "gemma2", "num_hidden_layers": 10**7}, WeightsError, "num_hidden_layers"),
    ({"model_type": ...}, UnsupportedModelError, "None is not supported"),
    ({"sliding_window": 128}, UnsupportedModelError, "sliding-window"),
    ({"num_key_value_heads": 3}, WeightsError, "must be a multiple"),
    ({"num_hidden_layers": 4}, WeightsError, "model.layers.3.* is missing"),
    ({"num_hidden_layers": 2}, WeightsError, "model.layers.2.* does not belong"),
    ({"intermediate_size": 64}, WeightsError, "_proj.weight has shape"),
    ({"vocab_size": 300}, WeightsError, "embed_tokens.weight has shape"),
    ({"architectures": ["LlamaForTokenClassification"]}, UnsupportedModelError, "TokenClass"),
    ({"hidden_act": "gelu"}, UnsupportedModelError, "activation 'gelu'"),
    ({"quantization_config": {"quant_method": "gptq"}}, UnsupportedModelError, "'gptq'"),
    ({"layer_types": ["sliding_attention"]}, UnsupportedModelError, "sliding-window"),
    ({"layer_types": ["linear_attention"]}, UnsupportedModelError, "in layer_types"),
]
END_IDS = ["x", "<|im_end|>", [2, "a"], [2, None], {"2": 1}, 2.5, True, [[2]]]
NO_FILES = [
    *("../secret.safetensors", "/etc/secret.safetensors", "sub/a.safetensors", "a\\b.safetensors"),
    *("a\0.safetensors", "absent.safetensors", "config.json", "..", "", 7, None, ["x"]),
]
HEADERS = (2**60, 2**63 - 1, 2**64 - 1, 10**9, 0)
BROKEN_JSON = ["", "{", "[1]", "[" * 100_000]
FOLDERS = [
    *((edits("config.json", **changes), *error) for changes, *error in CONFIGURATIONS),
    *((edits("config.json", **{key: value}), WeightsError, key) for key, value in WRONG_KINDS),
    *((holds("config.json", text), WeightsError, r"config\.json") for text in ("\udcff", "null")),
    *((holds("config.json", text), WeightsError, r"config\.json") for text in BROKEN_JSON),
    (lacks("config.json"), ModelNotFoundError, r"config\.json is missing"),
    # weights
    (lacks(FIRST, SECOND, INDEX), WeightsError, r"no \.safetensors file"),
    *((cuts(end, FIRST), WeightsError, f"{FIRST}: cannot be read") for end in (0, 4, 100, -100)),
    *(
        (overwrites(0, "<Q", length, name=FIRST), WeightsError, f"{FIRST}: cannot be read")
        for length in HEADERS
    ),
    (holds(FIRST, struct.pack("<Q", 8) + b'["list"]'), WeightsError, FIRST),
    (overwrites(0, "3s", b"F16", name=FIRST, after=b'"dtype":"'), WeightsError, "cannot be read"),
    (stores(NORM, lambda old: old.astype(np.int32)), WeightsError, f"{NORM} has type int32"),
    (stores(NORM, lambda old: old.astype(np.uint32)), WeightsError, "uint32.* must be floating"),
    (stores(NORM, lambda old: old[1:].copy()), WeightsError, r"has shape \(31,\).*\(32,\)"),
    (stores(NORM, None), WeightsError, f"{INDEX}.*{NORM}"),
    (both(stores(NORM, None), indexes(NORM, ...)), WeightsError, f"source: .*{NORM} is missing"),
    (stores("extra", lambda _: np.zeros(3, np.float32)), WeightsError, f"{FIRST}: .* extra"),
    (
        stores("model.layers.0.mlp.up_proj.scales", lambda _: np.zeros((48, 5), np.float32)),
        WeightsError,
        r"up_proj\.scales does not fit",
    ),
    (
        lambda path: save_file(load_file(path / FIRST) | load_file(path / SECOND), path / SECOND),
        WeightsError,
        f"{FIRST}|{SECOND}",
    ),
    *((indexes(NORM, place), WeightsError, f"{INDEX}.*{NORM}") for place in NO_FILES),
    *((holds(INDEX, text), WeightsError, INDEX) for text in [*BROKEN_JSON, "{}"]),
    (holds(INDEX, '{"weight_map": []}'), WeightsError, INDEX),
    # the tokenizer
    (lacks("tokenizer.json"), TokenizerError, r"tokenizer\.json is missing"),
    *(
        (holds("tokenizer.json", text), TokenizerError, "source: the tokenizer")
        for text in ("", "{}", "[1]", '{"model": {"type": "BPE"}}', "\0" * 9)
    ),
    (edits("tokenizer_config.json", unk_token=""), TokenizerError, "source: "),
    *(
        (edits(name, eos_token_id=ids), TokenizerError, f"{name}: eos_token_id")
        for ids in END_IDS
        for name in ("generation_config.json", "config.json")
    ),
    *(
        (holds("generation_config.json", text), TokenizerError, r"generation_config\.json: ")
        for text in BROKEN_JSON
    ),
]
GGUF = [
    (overwrites(0, "4s", b"GGML"), WeightsError, "does not begin with GGUF"),
    (overwrites(4, "<I", 1), WeightsError, "version 1 "),
    (overwrites(4, "<I", 0x03000000), WeightsError, "version 50331648 "),
    (overwrites(8, "<Q", 28), WeightsError, "is missing"),
    (overwrites(8, "<Q", 30), WeightsError, r"tiny\.gguf"),
    (overwrites(8, "<Q", 2**60), WeightsError, "promises more than it holds"),
    (overwrites(16, "<Q", 2**60), WeightsError, "promises more than it holds"),
    (overwrites(16, "<Q", 2), WeightsError, r"tiny\.gguf"),
    *(  # after the name: 4 bytes for the number of dimensions, 8 for the only one, 4 for the type
        (overwrites(16, "<Q", offset, after=b"blk.1.attn_norm.weight"), WeightsError, "the tensor")
        for offset in (2**63, 10**6, 1, 0)
    ),
    (
        overwrites(12, "<I", 4321, after=b"blk.1.attn_norm.weight"),
        UnsupportedModelError,
        "the tensor",
    ),
    (cuts(-1), WeightsError, "reaches beyond the end"),
    (cuts(0), WeightsError, "promises more than it holds"),
    (rewritten("llama.block_count"), WeightsError, "llama.block_count is missing"),
    (rewritten("token_embd.weight"), WeightsError, "token_embd.weight is missing"),
    (rewritten("blk.1.ffn_up.weight"), WeightsError, "up_proj.weight is missing"),
    (rewritten("general.architecture"), UnsupportedModelError, "None is not supported"),
    (rewritten("tokenizer.ggml.tokens"), TokenizerError, "no tokenizer inside"),
    *(
        (rewritten(**{f"tokenizer.ggml.{name}": value}), TokenizerError, message)
        for name, value, message in (
            *(("pre", "martian", "martian"), ("pre", mx.array([5]), "5")),
            *(("model", "llama", "cannot be rebuilt"), ("eos_token_id", 9999, "eos")),
            *(("eos_token_id", "two", "eos"), ("eot_token_id", "two", "eot")),
            *(("eot_token_id", -1, "eot"), ("tokens", "abc", "are no list")),
            *(("tokens", mx.array([1, 2]), "no list of texts"), ("tokens", ["a", "a"], "bos")),
            *(("merges", ["ab"], "cannot be built"), ("merges", ["a zz"], "cannot be built")),
            ("token_type", 5, "token types are no list"),
        )
    ),
    *(
        (rewritten(**{name: value}), WeightsError, name.rpartition(".")[2])
        for name, value in (
            *(("llama.attention.head_count", 0), ("llama.attention.head_count", "four")),
            *(("general.alignment", 3), ("llama.rope.freq_base", "fast")),
            ("llama.attention.layer_norm_rms_epsilon", mx.nan),
        )
    ),
    (rewritten(**{"tokenizer.chat_template": 3}), TokenizerError, "no text"),
    *(
        (rewritten(**{name: value}), UnsupportedModelError, message)
        for name, value, message in (
            ("general.architecture", mx.array([1]), "architecture"),
            ("general.architecture", "mamba", "'mamba'"),
            ("llama.rope.scaling.type", "yarn", r"scaling \(yarn\)"),
            ("blk.0.magic.weight", mx.zeros((2,)), "blk.0.magic.weight"),
            ("rope_freqs.weight", mx.array([1.0, 7.0, 3.0, 2.0]), "rotary scaling"),
        )
    ),
]
SECOND_FILE = "consolidated.01.pth"


def has_other_names(path):
    write_torch(path / SECOND_FILE, {"norm.weight": np.zeros(32, np.float32)})


def packed_zip(path):
    """Compress the parts of a file, as PyTorch never does."""
    with zipfile.ZipFile(path / SECOND_FILE) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path / SECOND_FILE, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)


def with_parts(path):
    with zipfile.ZipFile(path / SECOND_FILE, "a") as archive:
        for number in range(10_001):
            archive.writestr(f"x/{number}", b"")


def endless_name():
    name = "x"
    for _ in range(12):  # 40 would be terabytes as a text, in a pickle that is hardly longer
        name = (name, name)
    return name


class Evil:
    """A pickle of this would make a folder."""

    def __reduce__(self):
        return os.mkdir, ("made by the pickle",)


def pickles(content):
    return lambda path: write_torch(path / SECOND_FILE, content)


def describes(shape, strides=(1,), key="0"):
    """Return a damage: a tensor of one number with a shape of its own."""
    return pickles({"a": pickled_tensor(key, 1, shape, strides), "b": np.zeros(1, np.float32)})


META = [
    *(
        (holds("tokenizer.model", content), TokenizerError, message)
        for content, message in (
            (b"", "another model's"),
            (b"YQ== 1\n", "have gaps"),
            (b"!!!! 0\n", "cannot be read as tiktoken's"),
            (b"YQ==\n", "cannot be read as tiktoken's"),
            (b"\0\1\2\3", "cannot be read as SentencePiece"),
        )
    ),
    *(
        (edits("params.json", **changes), WeightsError, message)
        for changes, message in (
            ({"dim": ...}, "dim must be a positive"),
            ({"n_heads": 0}, "n_heads must be a positive"),
            ({"n_kv_heads": "2"}, "n_kv_heads must be a positive"),
            ({"n_layers": 4}, r"model\.layers\.3.* is missing"),
            ({"dim": 64}, "has shape"),
            ({"n_heads": 3}, "heads"),
            ({"norm_eps": "small"}, "rms_norm_eps must be"),
        )
    ),
    (has_other_names, WeightsError, r"consolidated\.01\.pth: disagrees .* the tensor layers"),
    (lacks("consolidated.00.pth", SECOND_FILE), WeightsError, r"consolidated\.00\.pth is missing"),
    (pickles({"b": Evil()}), WeightsError, r"01\.pth: .* wants to call \w+ mkdir"),
    *(
        (pickles(content), WeightsError, r"01\.pth: cannot be read as a PyTorch file")
        for content in ({"a": "text"}, {"a": 1}, {}, {"a": {"b": 2}})
    ),
    (describes((1,), key=endless_name()), WeightsError, "a storage whose name is no text"),
    (describes(()), WeightsError, "without a shape"),
    (describes((1,) * 60_000), WeightsError, "too many dimensions"),
    (describes((2**40,) * 20_000), WeightsError, "too many dimensions"),
    (describes((2**47,) * 8), WeightsError, "do not lie in order"),
    (packed_zip, WeightsError, "it is compressed"),
    (with_parts, WeightsError, "parts"),
]


@pytest.mark.parametrize(
    ("format", "damage", "error", "match"),
    [
        *(pytest.param("folder", *case, id=f"folder-{n}") for n, case in enumerate(FOLDERS)),
        *(pytest.param("gguf", *case, id=f"gguf-{n}") for n, case in enumerate(GGUF)),
        *(pytest.param("meta", *case, id=f"meta-{n}") for n, case in enumerate(META)),
    ],
)
def test_what_is_wrong_is_named(make, refused, monkeypatch, tmp_path, format, damage, error, match):
    monkeypatch.chdir(tmp_path)
    source = make(format)
    damage(source)
    refused(source, error, match)


@pytest.mark.parametrize(
    "changes",
    [
        {"layer_types": ["full_attention"] * 3},
        {"rope_theta": None},
        {"sliding_window": 4096},
        {"sliding_window": 128, "use_sliding_window": False},
    ],
)
def test_what_changes_nothing_is_not_refused(tiny_folder, changes):
    edit_json(tiny_folder / "config.json", **changes)
    load(tiny_folder)


@pytest.mark.parametrize(
    "dtype", [mx.float32, mx.float16, pytest.param(mx.bfloat16, marks=pytest.mark.bfloat16)]
)
@pytest.mark.parametrize("bad", [mx.nan, mx.inf, -mx.inf])
def test_nan_and_infinity(tmp_path, byte_tokenizer, refused, dtype, bad):
    model = make_tiny_model()
    model.model.norm.weight = mx.where(mx.arange(32) == 7, bad, model.model.norm.weight)
    folder = write_folder(tmp_path / "source", model, byte_tokenizer, dtype)
    refused(folder, WeightsError, r"model\.safetensors.*model\.norm\.weight")
    refused(write_gguf(tmp_path / "a.gguf", model), WeightsError, r"a\.gguf.*model\.norm\.weight")


def test_numbers_that_were_changed_are_refused(tmp_path):
    file = write_torch(tmp_path / "a.pth", {"a": np.full((1, 1), 7, np.float32)})
    file.write_bytes(file.read_bytes().replace(np.float32(7).tobytes(), np.float32(8).tobytes()))
    with pytest.raises(WeightsError, match="are damaged"):
        open_torch_file(file)["a"].read()


def test_a_tokenizer_of_another_vocabulary(tmp_path, byte_tokenizer, refused):
    for vocabulary in (255, 1000):
        model = make_tiny_model(vocab_size=vocabulary)
        folder = write_folder(tmp_path / f"of{vocabulary}", model, byte_tokenizer)
        refused(folder, TokenizerError, f"the tokenizer knows 258 tokens .*{vocabulary}")


def test_the_command_says_it_in_one_line(make, tmp_path, capsys):
    out = tmp_path / "out"
    arguments = ["--hf-path", str(make("folder") / FIRST), "--mlx-path", str(out)]
    assert cli.main(["convert", *arguments]) == 2
    printed, said = capsys.readouterr()
    assert (printed, said.count("\n"), out.exists()) == ("", 1, False)
    assert said.startswith("entropix: ")
