"""Meta's folders, made by the tests: files as PyTorch writes them, without PyTorch."""

import base64
import io
import json
import os
import pickle
import sys
import types
import zipfile

import mlx.core as mx
import mlx_lm
import numpy as np
import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from entropix_mlx import load
from entropix_mlx.checkpoints.torch_file import open_torch_file
from entropix_mlx.conversion.convert import convert
from entropix_mlx.errors import TokenizerError, WeightsError
from tests.conftest import make_tiny_model
from tests.folders import edit_json, stored_as

TOKENS = mx.array([[5, 1, 200, 77, 3]])
NAMES = [
    ("model.embed_tokens", "tok_embeddings"),
    ("model.norm", "norm"),
    ("lm_head", "output"),
    ("model.layers.", "layers."),
    ("self_attn.q_proj", "attention.wq"),
    ("self_attn.k_proj", "attention.wk"),
    ("self_attn.v_proj", "attention.wv"),
    ("self_attn.o_proj", "attention.wo"),
    ("input_layernorm", "attention_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_proj", "feed_forward.w1"),
    ("mlp.down_proj", "feed_forward.w2"),
    ("mlp.up_proj", "feed_forward.w3"),
]


class Storage:
    """What a pickle refers to instead of holding numbers."""

    def __init__(self, key, array):
        self.key = key
        self.array = array


class Described:
    """A tensor that is pickled as PyTorch pickles its own."""

    def __init__(self, storage):
        self.storage = storage

    def __reduce__(self):
        shape = self.storage.array.shape
        strides = tuple(int(np.prod(shape[axis + 1 :])) for axis in range(len(shape)))
        rebuild = sys.modules["torch._utils"]._rebuild_tensor_v2
        return rebuild, (self.storage, 0, shape, strides, False, {})


@pytest.fixture(autouse=True)
def names_of_torch(monkeypatch):
    """Give the pickler something to find under the names that it writes."""
    torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")
    torch.FloatStorage = type("FloatStorage", (), {"__module__": "torch"})

    def _rebuild_tensor_v2():
        raise AssertionError("never called")

    _rebuild_tensor_v2.__module__ = "torch._utils"
    _rebuild_tensor_v2.__qualname__ = "_rebuild_tensor_v2"
    utils._rebuild_tensor_v2 = _rebuild_tensor_v2
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch._utils", utils)


def write_torch(file, content):
    """Write what `torch.save` would of a dictionary of float32 arrays, or of anything else."""
    storages = []

    class Pickler(pickle.Pickler):
        def persistent_id(self, thing):
            if not isinstance(thing, Storage):
                return None
            kind = sys.modules["torch"].FloatStorage
            return ("storage", kind, thing.key, "cpu", thing.array.size)

    def describe(array):
        if not isinstance(array, np.ndarray):
            return array
        storages.append(Storage(str(len(storages)), array))
        return Described(storages[-1])

    pickled = io.BytesIO()
    Pickler(pickled, protocol=2).dump({name: describe(value) for name, value in content.items()})
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("consolidated/data.pkl", pickled.getvalue())
        for storage in storages:
            archive.writestr(f"consolidated/data/{storage.key}", storage.array.tobytes())
    return file


def metas(model):
    """Return a model's weights by Meta's names, in Meta's order of rows."""
    return {name: np.array(rows) for name, rows in stored_as(model, NAMES).items()}


def sliced(weights, number, count, embedding_axis):
    axes = {"wo.": 1, "w2.": 1, "tok_embeddings.": embedding_axis}
    own = {}
    for name, weight in weights.items():
        axis = next((a for part, a in axes.items() if part in name), 0)
        whole = name.endswith("norm.weight")
        own[name] = weight if whole else np.split(weight, count, axis)[number].copy()
    return own


def llama3_tokens(folder):
    """Write a tokenizer file of 258 tokens: all bytes, and two longer ones."""
    tokens = [bytes([byte]) for byte in range(256)] + [b"th", b"the"]
    lines = [base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens)]
    (folder / "tokenizer.model").write_bytes(b"".join(lines))


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "llama"
    folder.mkdir()
    llama3_tokens(folder)
    return folder


def write_meta(folder, count=1, embedding_axis=0, **changes):
    model = make_tiny_model(vocab_size=258 + 256, tie_word_embeddings=False, **changes)
    weights = metas(model)
    for number in range(count):
        file = folder / f"consolidated.{number:02d}.pth"
        write_torch(file, sliced(weights, number, count, embedding_axis))
    config = model.config
    params = {"dim": 32, "n_layers": 3, "n_heads": 4, "n_kv_heads": 2, "vocab_size": -1}
    params |= {"norm_eps": config.rms_norm_eps, "rope_theta": config.rope_theta}
    (folder / "params.json").write_text(json.dumps(params))
    return model


@pytest.mark.parametrize(("count", "embedding_axis"), [(1, 0), (2, 0), (2, 1)])
def test_the_logits_are_those_of_the_model(folder, tmp_path, count, embedding_axis):
    model = write_meta(folder, count, embedding_axis)
    loaded, _ = load(folder)
    np.testing.assert_allclose(loaded(TOKENS).logits, model(TOKENS).logits, rtol=1e-4, atol=1e-3)
    theirs, tokenizer = mlx_lm.load(str(convert(folder, tmp_path / "out")))
    np.testing.assert_allclose(theirs(TOKENS), model(TOKENS).logits, rtol=1e-3, atol=1e-3)
    assert tokenizer.decode(tokenizer.encode("the é")) == "<|begin_of_text|>the é"


def test_llama_3s_tokenizer(folder):
    write_meta(folder)
    _, tokenizer = load(folder)
    assert tokenizer.encode("the") == [258, 257]
    assert tokenizer.encode("<|eot_id|>")[1:] == [258 + 9]
    assert tokenizer.eos_token_ids == {259, 258 + 9}
    assert len(tokenizer.get_vocab()) == 258 + 256


def test_llama_2s_tokenizer(tmp_path):
    text = [f"{number} quick brown foxes jump over lazy dogs" for number in range(200)]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text),
        model_writer=model,
        vocab_size=400,
        model_type="bpe",
        byte_fallback=True,
        minloglevel=2,
    )
    (tmp_path / "tokenizer.model").write_bytes(model.getvalue())
    write_meta(tmp_path)
    reference = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    _, tokenizer = load(tmp_path)
    for text in ("12 lazy foxes", "é日本"):
        assert tokenizer.encode(text) == [1, *reference.encode(text)]
    assert tokenizer.eos_token_ids == {2}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "another model's"),
        (b"YQ== 1\n", "have gaps"),
        (b"!!!! 0\n", "cannot be read as tiktoken's"),
        (b"YQ==\n", "cannot be read as tiktoken's"),
        (b"\0\1\2\3", "cannot be read as SentencePiece"),
    ],
)
def test_a_broken_tokenizer(folder, content, message):
    write_meta(folder)
    (folder / "tokenizer.model").write_bytes(content)
    with pytest.raises(TokenizerError, match=message):
        load(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dim": ...}, "dim must be a positive"),
        ({"n_heads": 0}, "n_heads must be a positive"),
        ({"n_kv_heads": "2"}, "n_kv_heads must be a positive"),
        ({"n_layers": 4}, r"model\.layers\.3.* is missing"),
        ({"dim": 64}, "has shape"),
        ({"n_heads": 3}, "heads"),
        ({"norm_eps": "small"}, "rms_norm_eps must be"),
    ],
)
def test_broken_parameters(folder, changes, message):
    write_meta(folder)
    edit_json(folder / "params.json", **changes)
    with pytest.raises(WeightsError, match=message):
        load(folder)


def test_files_that_disagree(folder):
    write_meta(folder, count=2)
    weights = metas(make_tiny_model(vocab_size=514))
    write_torch(folder / "consolidated.01.pth", weights)
    with pytest.raises(WeightsError, match=r"consolidated\.01\.pth: disagrees .* output\.weight"):
        load(folder)
    (folder / "consolidated.01.pth").unlink()
    (folder / "consolidated.00.pth").unlink()
    with pytest.raises(WeightsError, match=r"consolidated\.00\.pth is missing"):
        load(folder)


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_a_pickle_that_calls_something_is_refused(tmp_path):
    evil = Evil(tmp_path / "made by the pickle")
    file = write_torch(tmp_path / "evil.pth", {"a": np.zeros(3, np.float32), "b": evil})
    with pytest.raises(WeightsError, match=r"evil\.pth: .* wants to call \w+ mkdir"):
        open_torch_file(file)
    assert not evil.path.exists()


@pytest.mark.parametrize("content", [{"a": "text"}, {"a": 1}, {}, {"a": {"b": 2}}])
def test_what_is_no_tensor_is_refused(tmp_path, content):
    with pytest.raises(WeightsError, match=r"odd\.pth: cannot be read as a PyTorch file"):
        open_torch_file(write_torch(tmp_path / "odd.pth", content))


def test_a_storage_whose_name_would_be_endless_is_refused(tmp_path):
    name = "x"
    for _ in range(12):  # 40 would be terabytes as a text, in a pickle that is hardly longer
        name = (name, name)
    tensor = Described(Storage(name, np.zeros(1, np.float32)))
    file = write_torch(tmp_path / "bomb.pth", {"a": tensor})
    assert file.stat().st_size < 1000
    with pytest.raises(WeightsError, match=r"bomb\.pth: .* a storage whose name is no text"):
        open_torch_file(file)


def test_an_inflated_entry_is_refused(tmp_path):
    file = write_torch(tmp_path / "bomb.pth", {"a": np.zeros(10**6, np.float32)})
    with zipfile.ZipFile(file) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    with pytest.raises(WeightsError, match="it is compressed"):
        open_torch_file(file)


@pytest.fixture(scope="module")
def valid(tmp_path_factory):
    return tmp_path_factory.mktemp("torch") / "tiny.pth"


@pytest.mark.slow
@settings(max_examples=300, deadline=3000)
@given(bits=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 7)), min_size=1, max_size=4))
def test_turned_bits(valid, bits):
    content = {"a": np.ones((2, 3), np.float32), "b": np.zeros(4, np.float32)}
    changed = bytearray(write_torch(valid, content).read_bytes())
    for byte, bit in bits:
        changed[byte % len(changed)] ^= 1 << bit
    valid.write_bytes(changed)
    try:
        mx.eval([tensor.read() for tensor in open_torch_file(valid).values()])
    except WeightsError as error:
        assert "tiny.pth" in str(error)  # noqa: PT017
