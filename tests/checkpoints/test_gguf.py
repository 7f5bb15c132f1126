"""GGUF files written by the test from tiny models, in the format's own names and row order."""

from functools import partial

import mlx.core as mx
import mlx.nn as nn
import mlx_lm
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx.utils import tree_flatten

from entropix_mlx import load
from entropix_mlx.checkpoints.convert import convert
from entropix_mlx.checkpoints.gguf import read_header, read_tensors
from entropix_mlx.errors import EntropixError, TokenizerError, UnsupportedModelError, WeightsError
from tests import folders
from tests.architectures import WINDOW, make
from tests.conftest import make_tiny_model
from tests.folders import GGUF_NAMES, metadata_of, save_gguf, tensors_of, write_gguf

pytestmark = pytest.mark.usefixtures("uncompiled")

LLAMA3 = folders.LLAMA3 | {"original_max_position_embeddings": 8192}
TOKENS = mx.array([[5, 1, 200, 77, 3, 9, 42, 17, 60, 8, 250, 33]])


def logits_of(model):
    return model(TOKENS, model.make_cache()).logits


def check(path, expected):
    loaded, _ = load(path)
    np.testing.assert_allclose(logits_of(loaded), expected, rtol=1e-4, atol=1e-3)
    return loaded


@pytest.fixture
def write(tmp_path):
    return partial(write_gguf, tmp_path / "tiny.gguf")


@pytest.mark.parametrize(
    "changes",
    [{}, {"tie_word_embeddings": False}, {"attention_bias": True, "mlp_bias": True}],
    ids=["plain", "untied", "biases"],
)
def test_logits_survive(write, tmp_path, changes):
    model = make_tiny_model(**changes)
    loaded = check(write(model), logits_of(model))
    assert loaded.config == model.config
    check(convert(tmp_path / "tiny.gguf", tmp_path / "out"), logits_of(model))


def test_llama_3_scaling_is_recognised_by_its_factors(write, tmp_path):
    model = make_tiny_model(rope_scaling=LLAMA3, rope_theta=500000.0, head_dim=32)
    pairs = 500000.0 ** (-np.arange(0, 32, 2) / 32)
    kept = np.clip((8192 * pairs / (2 * np.pi) - 1) / 3, 0, 1)
    factors = mx.array(1 / ((1 - kept) / 8 + kept)).astype(mx.float32)
    file = write(model, **{"rope_freqs.weight": factors})
    check(file, logits_of(model))
    check(convert(file, tmp_path / "out"), logits_of(model))
    with pytest.raises(UnsupportedModelError):
        load(write(model, **{"rope_freqs.weight": factors + 0.5}))


@pytest.mark.parametrize("kind", ["qwen2", "qwen3"])
def test_qwen_files(tmp_path, kind):
    model = make_tiny_model(model_type=kind, tie_word_embeddings=False)
    metadata = {key.replace("llama.", f"{kind}."): x for key, x in metadata_of(model).items()}
    metadata |= {"general.architecture": kind, "tokenizer.ggml.pre": "qwen2"}
    mx.save_gguf(str(tmp_path / "a.gguf"), tensors_of(model), metadata)
    check(tmp_path / "a.gguf", logits_of(model))
    _, tokenizer = load(tmp_path / "a.gguf")
    assert tokenizer.encode("12 e\u0301")[1:] == tokenizer.encode("12 \u00e9")[1:]


SPACES = ["<unk>", "<s>", "</s>", *(f"<0x{n:02X}>" for n in range(256)), "▁", "a", "b", "ab", "▁ab"]
GEMMA_NAMES = [
    ("post_attention_layernorm", "post_attention_norm"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
]
GEMMA_KEYS = {
    "gemma3.attention.key_length": mx.array(8),
    "gemma3.attention.sliding_window": mx.array(WINDOW),
    "gemma3.attention.sliding_window_pattern": mx.array(2),
    "gemma3.rope.freq_base": mx.array(1e6),
    "gemma3.embedding_length": mx.array(32),
    "gemma3.feed_forward_length": mx.array(48),
    "gemma3.block_count": mx.array(2),
    "gemma3.attention.head_count": mx.array(4),
    "gemma3.attention.head_count_kv": mx.array(2),
    "gemma3.attention.layer_norm_rms_epsilon": mx.array(1e-5),
    "gemma3.context_length": mx.array(512),
    "general.architecture": "gemma3",
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": SPACES,
    "tokenizer.ggml.scores": mx.array([-1000.0] * 259 + [-5.0, -4.0, -4.0, -2.0, -1.0]),
    "tokenizer.ggml.token_type": mx.array([2, 3, 3] + [6] * 256 + [1] * 5),
    "tokenizer.ggml.bos_token_id": mx.array(1),
    "tokenizer.ggml.eos_token_id": mx.array(2),
    "tokenizer.ggml.unknown_token_id": mx.array(0),
}


def gemma(**changes):
    return make(
        "gemma3_text",
        vocab_size=len(SPACES),
        **({"rope_theta": 1e6, "query_pre_attn_scalar": 8} | changes),
    )[0]


def write_gemma(file, model, without=(), **changes):
    """Write a model as llama.cpp's converter does."""
    tensors = {}
    for key, weight in tree_flatten(model.parameters()):
        name = key
        for ours, theirs in GEMMA_NAMES + GGUF_NAMES:
            name = name.replace(ours, theirs)
        tensors[name] = weight + 1 if "norm." in name else weight
    return save_gguf(file, tensors, GEMMA_KEYS.copy(), without, changes)


@pytest.mark.parametrize("tied", [False, True])
def test_gemma(tmp_path, tied):
    model = gemma()
    if tied:
        model.sanitize({})
    check(write_gemma(tmp_path / "tiny.gguf", model), model(TOKENS))


def test_gemma_with_a_linear_scaling(tmp_path):
    model = gemma(rope_scaling={"rope_type": "linear", "factor": 8.0})
    said = {"gemma3.rope.scaling.type": "linear", "gemma3.rope.scaling.factor": mx.array(8.0)}
    check(write_gemma(tmp_path / "tiny.gguf", model, **said), model(TOKENS))


@pytest.mark.parametrize("spaced", [True, False])
def test_a_sentencepiece_tokenizer(tmp_path, spaced):
    said = {"tokenizer.ggml.add_space_prefix": mx.array(spaced)}
    _, tokenizer = load(write_gemma(tmp_path / "tiny.gguf", gemma(), **said))
    # The highest score is joined first: "▁" and "ab", not "▁a".
    begin = ["▁ab"] if spaced else ["ab"]
    ids = tokenizer.encode("ab ab é</s>")
    texts = [SPACES[number] for number in ids]
    assert texts == ["<s>", *begin, "▁ab", "▁", "<0xC3>", "<0xA9>", "</s>"]
    assert tokenizer.decode(ids[1:-1]) == "ab ab é"
    detokenizer = tokenizer.detokenizer
    for number in ids[1:-1]:
        detokenizer.add_token(number)
    detokenizer.finalize()
    assert detokenizer.text == "ab ab é"
    assert tokenizer.eos_token_ids == {2}


def test_the_tokenizer_knows_its_special_tokens(write):
    _, tokenizer = load(write(make_tiny_model()))
    tokens = tokenizer.encode("It's 1234</s>")
    assert tokens[0] == 256
    assert tokens[-1] == 257
    assert tokenizer.decode(tokens[1:-1]) == "It's 1234"
    assert tokenizer.eos_token_ids == {257}
    assert not tokenizer.has_chat_template


@pytest.mark.parametrize(
    ("rule", "says", "begins"),
    [
        ("llama-bpe", None, True),
        ("llama-bpe", False, False),
        ("smollm", None, False),
        ("smollm", True, True),
    ],
)
def test_a_text_begins_as_llama_cpp_begins_it(write, rule, says, begins):
    key = "tokenizer.ggml.add_bos_token"
    changes = {"tokenizer.ggml.pre": rule} | ({} if says is None else {key: mx.array(says)})
    without = [key] if says is None else []
    _, tokenizer = load(write(make_tiny_model(), without, **changes))
    assert (tokenizer.encode("Hi")[0] == 256) is begins


ROWS, WIDTH = 5, 512


def random_blocks(gguf, kind):
    """Return random packed rows whose scales are small positive numbers."""
    generator = np.random.default_rng(0)
    numbers, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = generator.integers(0, 256, (ROWS, WIDTH // numbers, size), dtype=np.uint8)
    places = {"Q2_K": [80, 82], "Q3_K": [108], "Q6_K": [208], "Q5_1": [0, 2]}
    both = ("Q4_1", "Q4_K", "Q5_K")
    for place in places.get(kind.name, [0, 2] if kind.name in both else [0]):
        small = generator.uniform(0.01, 0.1, blocks.shape[:2]).astype(np.float16)
        blocks[..., place : place + 2] = small[..., None].view(np.uint8)
    return blocks.reshape(ROWS, -1)


KINDS = ["Q4_0", "Q4_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q5_0", "Q5_1"]


@pytest.mark.parametrize("name", KINDS)
def test_packed_tensors_have_the_numbers_of_the_gguf_package(tmp_path, name):
    gguf = pytest.importorskip("gguf")
    kind, path = gguf.GGMLQuantizationType[name], tmp_path / "a.gguf"
    blocks = random_blocks(gguf, kind)
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_tensor("a.weight", blocks, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    parts = read_tensors(path, read_header(path))
    found = parts["a.weight"]
    if found.dtype == mx.uint32:
        scales, biases = (parts[f"a.{part}"].astype(mx.float32) for part in ("scales", "biases"))
        found = mx.dequantize(found, scales, biases, 32, 8 if name == "Q8_0" else 4)
    expected = gguf.dequantize(blocks, kind)
    np.testing.assert_allclose(found.astype(mx.float32), expected, rtol=2e-3, atol=1e-2)


def test_packed_weights_stay_packed(tmp_path):
    gguf = pytest.importorskip("gguf")
    model = make_tiny_model(hidden_size=64, head_dim=16)
    plain = write_gguf(tmp_path / "plain.gguf", model)
    reader, file = gguf.GGUFReader(plain), tmp_path / "packed.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    for name, field in reader.fields.items():
        if "." in name and name != "general.architecture":
            kind = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], kind)
    kind = gguf.GGMLQuantizationType.Q8_0
    for tensor in reader.tensors:
        if ".attn_q." in tensor.name or "token_embd" in tensor.name:
            writer.add_tensor(tensor.name, gguf.quants.quantize(tensor.data, kind), raw_dtype=kind)
        else:
            writer.add_tensor(tensor.name, tensor.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    loaded, _ = load(file, dequantize=False)
    layer = loaded.inner.model.layers[0].self_attn
    assert isinstance(layer.q_proj, nn.QuantizedLinear)
    assert not isinstance(layer.k_proj, nn.QuantizedLinear)
    np.testing.assert_allclose(logits_of(loaded), logits_of(model), atol=0.5)
    out = convert(file, tmp_path / "out")
    expected = logits_of(loaded)
    np.testing.assert_allclose(logits_of(load(out)[0]), expected, rtol=1e-2, atol=1e-2)
    np.testing.assert_allclose(mlx_lm.load(str(out))[0](TOKENS), expected, rtol=0.05, atol=0.05)


WRONG = [
    ({"general.architecture": "mamba"}, UnsupportedModelError, "mamba"),
    ({"llama.rope.scaling.type": "yarn"}, UnsupportedModelError, "yarn"),
    ({"blk.0.magic.weight": mx.zeros((2,))}, UnsupportedModelError, "magic"),
    ({"llama.block_count": mx.array(10**8)}, WeightsError, "num_hidden_layers"),
    ({"llama.attention.head_count": mx.array(0)}, WeightsError, "head_count"),
    ({"llama.attention.head_count": "four"}, WeightsError, "head_count"),
    ({"llama.attention.layer_norm_rms_epsilon": mx.array(mx.nan)}, WeightsError, "epsilon"),
    ({"tokenizer.ggml.pre": "martian"}, TokenizerError, "martian"),
    ({"tokenizer.ggml.model": "llama"}, TokenizerError, "llama"),
    ({"tokenizer.ggml.tokens": mx.array([1, 2])}, TokenizerError, None),
    ({"tokenizer.ggml.merges": ["ab"]}, TokenizerError, None),
    ({"tokenizer.ggml.merges": ["a zz"]}, TokenizerError, None),
    ({"tokenizer.ggml.eos_token_id": mx.array(9999)}, TokenizerError, "eos"),
    ({"tokenizer.ggml.eot_token_id": "two"}, TokenizerError, "eot"),
    ({"tokenizer.chat_template": mx.array(3)}, TokenizerError, None),
]


@pytest.mark.parametrize(("changes", "error", "match"), WRONG)
def test_what_is_wrong_is_one_sentence(write, tmp_path, changes, error, match):
    with pytest.raises(error, match=match) as caught:
        load(write(make_tiny_model(), **changes))
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["llama.block_count", "token_embd.weight", "blk.1.ffn_up.weight"])
def test_what_is_missing_is_named(write, name):
    missing = r"block_count|token_embd|up_proj"
    with pytest.raises((WeightsError, UnsupportedModelError), match=missing):
        load(write(make_tiny_model(), [name]))


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    """A file, and where its numbers begin."""
    file = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_gguf(file, make_tiny_model(num_hidden_layers=1))
    content = file.read_bytes()
    return file, content, content.rindex(b"output_norm.weight") + 60


@given(st.lists(st.tuples(st.integers(4, 10**6), st.integers(0, 255)), min_size=1, max_size=6))
def test_turned_bytes_of_a_header_are_an_error_or_a_model(content, turns):
    file, whole, header = content
    damaged = bytearray(whole)
    for place, value in turns:
        damaged[4 + place % (header - 4)] = value
    damaged_file = file.with_name("damaged.gguf")
    damaged_file.write_bytes(damaged)
    try:
        read_tensors(damaged_file, read_header(damaged_file))
    except EntropixError as error:
        assert "\n" not in str(error)  # noqa: PT017


@pytest.mark.model
def test_the_demo_model_answers_as_mlx_lm_does(demo, demo_folder):
    model, tokenizer = demo
    theirs, _ = mlx_lm.load(str(demo_folder))
    prompt = mx.array([tokenizer.encode("Water boils at a temperature of")])
    ours, other = model(prompt, model.make_cache()).logits, theirs(prompt)
    np.testing.assert_allclose(ours, other, rtol=1e-3, atol=1e-2)
    assert tokenizer.encode("1998") == [33, 41, 41, 40]
