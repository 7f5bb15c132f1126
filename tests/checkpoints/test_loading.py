"""Loading a folder: what is wrong with it is named, and nothing else escapes."""

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from entropix_mlx import load
from entropix_mlx.checkpoints.locate import download, format_of
from entropix_mlx.errors import (
    ModelNotFoundError,
    WeightsError,
)
from entropix_mlx.models.llama import weight_layout
from tests.conftest import make_tiny_model
from tests.folders import LLAMA3, edit_json


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


@pytest.mark.parametrize(
    ("names", "opener"),
    [
        (["config.json"], "open_huggingface"),
        (["params.json"], "open_meta_llama"),
        (["config.json", "params.json"], "open_huggingface"),
        (["model.safetensors"], None),
        ([], None),
    ],
)
def test_a_format_is_recognised_by_names_alone(tmp_path, names, opener):
    for name in names:
        (tmp_path / name).touch()
    found = format_of(tmp_path)
    assert (found and found.open.__name__) == opener
    assert format_of(tmp_path / "model.gguf").open.__name__ == "open_gguf_model"
    assert format_of(tmp_path / "model.bin") is None
    (tmp_path / "folder.gguf").mkdir()
    assert format_of(tmp_path / "folder.gguf") is None


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
