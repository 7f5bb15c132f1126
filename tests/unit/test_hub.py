"""Hub models, with a stand-in for the hub: what is asked for, and in which order."""

import json
from pathlib import Path

import huggingface_hub
import pytest

from entropix_mlx import load
from entropix_mlx.conversion.convert import convert
from entropix_mlx.errors import OutputError, UnsupportedModelError
from tests.checkpoints import write_folder
from tests.conftest import make_tiny_model


@pytest.fixture
def hub(tmp_path, byte_tokenizer, monkeypatch):
    """A hub with one model; yields its folder and the requests."""
    folder = write_folder(tmp_path / "hub", make_tiny_model(), byte_tokenizer)
    requests = []

    def hf_hub_download(repository, filename):
        requests.append((repository, filename))
        return str(folder / filename)

    def snapshot_download(repository, allow_patterns):
        requests.append((repository, tuple(allow_patterns)))
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", hf_hub_download)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return folder, requests


def test_the_configuration_comes_first_and_no_code_comes(hub):
    _, requests = hub
    load("some/model")
    assert requests[0] == ("some/model", "config.json")
    (_, patterns) = requests[1]
    assert not any(Path("modeling.py").match(pattern) for pattern in patterns)
    assert not any(Path("pytorch_model.bin").match(pattern) for pattern in patterns)


@pytest.mark.parametrize("kind", ["gemma2", "mamba", "qwen2_moe", "smollm3"])
def test_another_architecture_costs_no_download(hub, kind):
    folder, requests = hub
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": kind}))
    with pytest.raises(UnsupportedModelError, match=f"'{kind}' is not supported"):
        load("some/model")
    assert requests == [("some/model", "config.json")]


def test_an_existing_folder_costs_no_download(hub, tmp_path):
    _, requests = hub
    (tmp_path / "out").mkdir()
    with pytest.raises(OutputError):
        convert("some/model", tmp_path / "out")
    assert requests == []
