"""Loading a folder: what is wrong with it is named, and nothing else escapes."""

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from entropix_mlx import load
from entropix_mlx.checkpoints.locate import download
from entropix_mlx.errors import (
    ModelNotFoundError,
    TokenizerError,
    UnsupportedModelError,
    WeightsError,
)
from entropix_mlx.models.llama import weight_layout
from tests.conftest import make_tiny_model
from tests.folders import LLAMA3, edit_json


def edit_weights(folder, **changes):
    file = folder / "model.safetensors"
    weights = dict(mx.load(str(file)))
    mx.eval(weights)
    for name, weight in changes.items():
        weights[name.replace("__", ".")] = weight
    weights = {name: weight for name, weight in weights.items() if weight is not ...}
    mx.save_safetensors(str(file), weights)


def test_a_folder_round_trips(tiny_folder, tiny_model, byte_tokenizer):
    model, tokenizer = load(tiny_folder)
    tokens = mx.array([[1, 2, 3]])
    np.testing.assert_allclose(model(tokens).logits, tiny_model(tokens).logits, atol=1e-4)
    assert tokenizer.encode("é!") == byte_tokenizer.encode("é!")
    assert tokenizer.eos_token_ids == {257}


def test_an_untied_head_is_recognised_without_being_told(tmp_path, byte_tokenizer):
    from entropix_mlx.conversion.convert import save

    model = make_tiny_model(tie_word_embeddings=False)
    save(model, byte_tokenizer, tmp_path)
    edit_json(tmp_path / "config.json", tie_word_embeddings=...)
    loaded, _ = load(tmp_path)
    assert not loaded.config.tie_word_embeddings
    tokens = mx.array([[1, 2, 3]])
    np.testing.assert_allclose(loaded(tokens).logits, model(tokens).logits, atol=1e-4)


def test_rope_parameters_of_newer_configurations(tiny_folder):
    scaling = LLAMA3 | {"rope_theta": 500000.0}
    edit_json(
        tiny_folder / "config.json", rope_theta=..., rope_scaling=..., rope_parameters=scaling
    )
    model, _ = load(tiny_folder)
    assert model.config.rope_theta == 500000.0
    assert model.config.rope_scaling["factor"] == 8.0


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"model_type": "no_such"}, UnsupportedModelError, "'no_such' is not supported"),
        ({"model_type": "olmo"}, UnsupportedModelError, "'olmo' is not supported"),
        ({"model_type": "cache"}, UnsupportedModelError, "'cache' is not supported"),
        ({"model_type": "../x"}, UnsupportedModelError, "'../x' is not supported"),
        ({"model_type": "gpt_neox"}, UnsupportedModelError, "config.json lacks 'layer_norm_eps'"),
        ({"model_type": "gemma2"}, WeightsError, "the weights do not fit"),
        ({"model_type": "gemma2", "model_file": "x.py"}, UnsupportedModelError, "code of its own"),
        ({"model_type": "gemma2", "head_dim": "x"}, UnsupportedModelError, "mlx-lm cannot run"),
        ({"model_type": "gemma2", "num_hidden_layers": 10**7}, WeightsError, "num_hidden_layers"),
        ({"model_type": ...}, UnsupportedModelError, "None is not supported"),
        ({"sliding_window": 128}, UnsupportedModelError, "sliding-window"),
        ({"rope_parameters": [1]}, WeightsError, "rope_parameters"),
        ({"hidden_size": ...}, WeightsError, "hidden_size"),
        ({"hidden_size": "32"}, WeightsError, "hidden_size"),
        ({"num_attention_heads": 0}, WeightsError, "num_attention_heads"),
        ({"num_key_value_heads": 3}, WeightsError, "must be a multiple"),
        ({"num_hidden_layers": 10**7}, WeightsError, "num_hidden_layers"),
        ({"num_hidden_layers": 4}, WeightsError, "model.layers.3.* is missing"),
        ({"num_hidden_layers": 2}, WeightsError, "model.layers.2.* does not belong"),
        ({"intermediate_size": 64}, WeightsError, "_proj.weight has shape"),
        ({"vocab_size": 300}, WeightsError, "embed_tokens.weight has shape"),
        ({"architectures": ["LlamaForTokenClassification"]}, UnsupportedModelError, "TokenClass"),
        ({"architectures": "LlamaForCausalLM"}, WeightsError, "architectures"),
        ({"hidden_act": "gelu"}, UnsupportedModelError, "activation 'gelu'"),
        ({"quantization_config": {"quant_method": "gptq"}}, UnsupportedModelError, "'gptq'"),
        ({"quantization": 4}, WeightsError, "quantization"),
        ({"layer_types": 4}, WeightsError, "layer_types"),
        ({"layer_types": ["sliding_attention"]}, UnsupportedModelError, "sliding-window"),
        ({"layer_types": ["linear_attention"]}, UnsupportedModelError, "in layer_types"),
        ({"layer_types": ["full_attention"] * 3}, None, ""),
        ({"head_dim": 7}, WeightsError, "head_dim"),
        ({"tie_word_embeddings": "yes"}, WeightsError, "tie_word_embeddings"),
        ({"rope_theta": None}, None, ""),
        ({"sliding_window": 4096}, None, ""),
        ({"sliding_window": 128, "use_sliding_window": False}, None, ""),
    ],
)
def test_a_bad_configuration_is_named(tiny_folder, changes, error, message):
    edit_json(tiny_folder / "config.json", **changes)
    if error is None:
        load(tiny_folder)
        return
    with pytest.raises(error, match=message):
        load(tiny_folder)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\udcff"])
def test_a_broken_configuration_file(tiny_folder, text):
    (tiny_folder / "config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(WeightsError, match=r"config\.json"):
        load(tiny_folder)


def test_weights_of_another_shape(tiny_folder):
    edit_weights(tiny_folder, model__norm__weight=mx.zeros((31,)))
    with pytest.raises(WeightsError, match=r"model\.norm\.weight has shape \(31,\).*\(32,\)"):
        load(tiny_folder)


def test_scales_that_fit_no_packing(tiny_folder):
    edit_weights(tiny_folder, model__layers__0__mlp__up_proj__scales=mx.zeros((48, 5)))
    with pytest.raises(WeightsError, match=r"up_proj\.scales does not fit"):
        load(tiny_folder)


def test_missing_parts(tiny_folder, tmp_path):
    (tiny_folder / "tokenizer.json").rename(tmp_path / "t")
    with pytest.raises(TokenizerError, match=r"tokenizer\.json is missing"):
        load(tiny_folder)
    (tiny_folder / "tokenizer.json").write_text("{}")
    with pytest.raises(TokenizerError, match="cannot be read"):
        load(tiny_folder)
    (tiny_folder / "model.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"no \.safetensors file"):
        load(tiny_folder)
    (tiny_folder / "config.json").unlink()
    with pytest.raises(ModelNotFoundError, match=r"config\.json is missing"):
        load(tiny_folder)


def test_no_such_model(tmp_path):
    with pytest.raises(ModelNotFoundError, match="give a folder"):
        load(tmp_path / "absent" / "deep" / "er")
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(ModelNotFoundError, match="neither a folder nor"):
        load(tmp_path / "notes.txt")
    with pytest.raises(ModelNotFoundError, match="some/model"):
        load("some/model")
    with pytest.raises(ModelNotFoundError, match="no model '~nobody-at-all/m'"):
        load("~nobody-at-all/m")


def test_a_model_without_a_name_is_not_the_current_folder(tiny_folder, monkeypatch):
    monkeypatch.chdir(tiny_folder)
    with pytest.raises(ModelNotFoundError, match="has no name"):
        load("")
    load(".")


def test_a_model_that_may_not_be_read_is_a_message(tiny_folder, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        patch.setattr("entropix_mlx.checkpoints.locate.Path.is_dir", refuse)
        with pytest.raises(ModelNotFoundError, match="tiny cannot be read: Permission denied"):
            load(tiny_folder)
    monkeypatch.setattr("entropix_mlx.checkpoints.locate.Path.lstat", refuse)
    with pytest.raises(WeightsError, match=r"tiny: cannot be read: .*Permission denied"):
        load(tiny_folder)


@pytest.mark.parametrize("bits", [3, 4, 5, 6, 8])
def test_unpacked_weights_are_counted_as_they_are(bits):
    model = make_tiny_model(hidden_size=64, intermediate_size=64, head_dim=16)
    dense = weight_layout.dense_bytes(model)
    nn.quantize(model, group_size=32, bits=bits)
    assert weight_layout.dense_bytes(model) == dense


def test_weights_are_downloaded_last(tiny_folder, monkeypatch):
    asked = []

    def fetch(_, allow_patterns):
        asked.append(allow_patterns)
        return str(tiny_folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    assert download("owner/name") == tiny_folder
    assert "config.json" in asked[0]
    weights = [any(name.endswith(".safetensors") for name in patterns) for patterns in asked]
    assert weights == [False, False, True]
