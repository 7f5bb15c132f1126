"""How the format of a model is recognised, by names alone."""

import pytest

from entropix_mlx.checkpoints.gguf.checkpoint import open_gguf_model
from entropix_mlx.checkpoints.huggingface import open_huggingface
from entropix_mlx.checkpoints.locate import format_of
from entropix_mlx.checkpoints.meta import open_meta_llama


@pytest.mark.parametrize(
    ("names", "opener"),
    [
        (["config.json"], open_huggingface),
        (["params.json"], open_meta_llama),
        (["config.json", "params.json"], open_huggingface),
        (["model.safetensors"], None),
        ([], None),
    ],
)
def test_a_folder_is_recognised_by_its_files(tmp_path, names, opener):
    for name in names:
        (tmp_path / name).touch()
    found = format_of(tmp_path)
    assert (found and found.open) == opener


def test_a_file_is_recognised_by_its_ending(tmp_path):
    assert format_of(tmp_path / "model.gguf").open == open_gguf_model
    assert format_of(tmp_path / "model.bin") is None
    (tmp_path / "folder.gguf").mkdir()
    assert format_of(tmp_path / "folder.gguf") is None
