"""Loading: equal to mlx-lm's own, and what users of mlx-lm bring along."""

import json

import mlx.core as mx
import mlx.nn as nn
import mlx_lm
import numpy as np
import pytest

from entropix_mlx import load
from entropix_mlx.api.prompts import conversation_text
from entropix_mlx.checkpoints.convert import convert
from entropix_mlx.checkpoints.load import Extras
from entropix_mlx.errors import TokenizerError, UnsupportedModelError, WeightsError
from entropix_mlx.models import llama
from tests import architectures
from tests.conftest import make_tiny_model
from tests.folders import edit_json, write_folder

pytestmark = pytest.mark.usefixtures("uncompiled")

TOKENS = mx.array([list(b"The quick brown fox jumps")])


def logits_of(model):
    return model(TOKENS, model.make_cache()).logits


def mlx_lms(path):
    return mlx_lm.utils.load_model(path)[0](TOKENS)


@pytest.fixture
def folder(tmp_path, byte_tokenizer):
    """Return a function that writes a tiny model of an architecture."""

    def write(kind, **changes):
        target = tmp_path / kind
        model, config = architectures.make(kind)
        stated = {name: value for name, value in (config | changes).items() if value is not ...}
        architectures.save(model, stated, target)
        byte_tokenizer.save_pretrained(target)
        return target

    return write


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", architectures.ARCHITECTURES)
def test_every_architecture_computes_what_mlx_lms_own_load_does(folder, kind):
    path = folder(kind)
    model, tokenizer = load(path)
    np.testing.assert_allclose(logits_of(model), mlx_lms(path), rtol=1e-4, atol=1e-4)
    assert isinstance(model.inner, llama.Model) == (kind in llama.ARGUMENTS)
    assert tokenizer.eos_token_ids == {257}


@pytest.mark.parametrize("shards", [1, 2])
def test_a_folder_round_trips(tmp_path, byte_tokenizer, shards):
    model = make_tiny_model()
    write_folder(tmp_path, model, byte_tokenizer, shards=shards)
    for tapped in (False, True):
        loaded, tokenizer = load(tmp_path, tapped=tapped)
        np.testing.assert_allclose(logits_of(loaded), logits_of(model), rtol=1e-4, atol=1e-4)
        assert isinstance(loaded.inner, llama.Model) is not tapped
    assert tokenizer.encode("é!") == byte_tokenizer.encode("é!")


@pytest.mark.parametrize("kind", ["llama", "gemma3_text", "mixtral"])
@pytest.mark.parametrize("bits", [3, 4, 8])
def test_quantized_weights(folder, tmp_path, kind, bits):
    path = convert(folder(kind), tmp_path / "packed", bits=bits, group_size=32)
    for dequantize in (True, False):
        model, _ = load(path, dequantize=dequantize)
        packed = any(isinstance(part, nn.QuantizedLinear) for part in model.inner.modules())
        assert packed is not dequantize
        np.testing.assert_allclose(logits_of(model), mlx_lms(path), rtol=1e-2, atol=1e-2)


def test_half_precision(tiny_folder, tiny_model):
    weights = dict(mx.load(str(tiny_folder / "model.safetensors")))
    half = {name: array.astype(mx.float16) for name, array in weights.items()}
    mx.save_safetensors(str(tiny_folder / "model.safetensors"), half)
    model, _ = load(tiny_folder)
    np.testing.assert_allclose(logits_of(model), logits_of(tiny_model), rtol=0.02, atol=0.02)


@pytest.mark.parametrize("name", ["generation_config.json", "config.json"])
@pytest.mark.parametrize(("ids", "expected"), [(65, {65, 257}), ([65, 66], {65, 66, 257})])
def test_end_of_text_ids(tiny_folder, name, ids, expected):
    edit_json(tiny_folder / name, eos_token_id=ids)
    assert load(tiny_folder)[1].eos_token_ids == expected


def test_added_tokens_beyond_the_vocabulary_are_padding(tiny_folder):
    file = tiny_folder / "tokenizer.json"
    described = json.loads(file.read_text())
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    described["added_tokens"].append({"id": 258, "content": "<pad>", "special": True} | flags)
    file.write_text(json.dumps(described))
    assert load(tiny_folder)[1].encode("a<pad>")[-1] == 258


def test_endings_and_template_variables(folder):
    path = folder("gemma3_text")
    template = "{% if quick %}quick {% endif %}{{ messages[0]['content'] }}"
    (path / "chat_template.jinja").write_text(template)
    extras = Extras(extra_eos_tokens=("65",), chat_template_config={"quick": True})
    _, tokenizer = load(path, extras=extras)
    assert 65 in tokenizer.eos_token_ids
    messages = [{"role": "user", "content": "Hi"}]
    assert conversation_text(tokenizer, messages) == "quick Hi"
    with pytest.raises(TokenizerError):
        load(path, extras=Extras(extra_eos_tokens=("<no such>",)))


def test_a_quantized_cache(folder, tmp_path, byte_tokenizer):
    model, config = architectures.make("qwen3_moe", head_dim=32)
    architectures.save(model, config, tmp_path)
    byte_tokenizer.save_pretrained(tmp_path)
    model, _ = load(tmp_path, extras=Extras(kv_bits=8, kv_group_size=32))
    assert not model.can_batch
    for kind in ("gpt2", "gemma3_text"):  # heads of 8 numbers; sliding windows
        with pytest.raises(UnsupportedModelError, match=f"KV cache of this {kind}"):
            load(folder(kind), extras=Extras(kv_bits=8, kv_group_size=32))


@pytest.mark.parametrize("bad", [mx.nan, mx.inf])
def test_nan_and_infinity(tmp_path, byte_tokenizer, bad):
    model = make_tiny_model()
    norm = model.inner.model.norm
    norm.weight = mx.where(mx.arange(32) == 7, bad, norm.weight)
    with pytest.raises(WeightsError, match=str(tmp_path)):
        load(write_folder(tmp_path, model, byte_tokenizer))
