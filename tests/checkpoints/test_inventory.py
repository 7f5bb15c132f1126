"""`entropix models`: what is listed, and what is said of it."""

import errno
import shutil
from pathlib import Path

import mlx.core as mx
import pytest
from huggingface_hub import constants

from entropix_mlx import cli
from entropix_mlx.checkpoints import inventory
from entropix_mlx.conversion.convert import convert
from entropix_mlx.conversion.recipe import Recipe
from entropix_mlx.errors import ModelNotFoundError
from tests.conftest import make_tiny_model
from tests.folders import write_folder, write_gguf

HASH = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(tmp_path, byte_tokenizer, monkeypatch):
    """The hub's cache, with a model that can run and one that cannot."""
    cache = tmp_path / "hub"
    for name, kind in (("models--tiny--llama", "llama"), ("models--tiny--whisper", "whisper")):
        repository = cache / name
        snapshot = repository / "snapshots" / HASH
        write_folder(snapshot, make_tiny_model(), byte_tokenizer, mx.float16, model_type=kind)
        (repository / "blobs").mkdir()
        for file in list(snapshot.iterdir()):
            file.rename(repository / "blobs" / file.name)
            file.symlink_to(f"../../blobs/{file.name}")
        (repository / "refs").mkdir()
        (repository / "refs" / "main").write_text(HASH)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(inventory, "demo_model", lambda: None)
    return cache


def test_the_cache_is_listed_newest_version_each(cache):
    runs, refused = inventory.inventory()
    assert runs.name == "tiny/llama"
    assert runs.path == cache / "models--tiny--llama" / "snapshots" / HASH
    assert (runs.precision, runs.context, runs.fault) == ("float16", 256, None)
    weights = cache / "models--tiny--llama" / "blobs" / "model.safetensors"
    assert runs.nbytes > weights.stat().st_size
    assert refused.name == "tiny/whisper"
    assert "'whisper' is not supported" in refused.fault
    assert (refused.precision, refused.context) == (None, None)


@pytest.mark.usefixtures("cache")
def test_folders_and_gguf_files_are_found(tmp_path, byte_tokenizer):
    own = tmp_path / "own"
    source = write_folder(
        own / "dense", make_tiny_model(hidden_size=64, head_dim=16), byte_tokenizer
    )
    convert(source, own / "packed", Recipe(bits=3))
    write_gguf(own / "tiny.gguf", make_tiny_model())
    (own / "notes").mkdir()
    listed = {entry.path.name: entry for entry in inventory.inventory([own])}
    precisions = [listed[name].precision for name in ("dense", "packed", "tiny.gguf")]
    assert precisions == ["float32", "3 bits", "float32"]
    assert "notes" not in listed
    assert {entry.path for entry in inventory.inventory([source])} >= {source}
    with pytest.raises(ModelNotFoundError, match="neither a folder nor"):
        list(inventory.inventory([tmp_path / "absent"]))


def test_a_cache_that_is_no_folder_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelNotFoundError):
        list(inventory.inventory())


@pytest.fixture
def forbid(monkeypatch):
    """Let a method of paths refuse some of them: a test may run as root, who may do anything."""

    def forbid(method, is_forbidden):
        def guarded(path, *arguments, **options):
            if is_forbidden(path):
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return real(path, *arguments, **options)

        real = getattr(Path, method)
        monkeypatch.setattr(Path, method, guarded)

    return forbid


@pytest.mark.usefixtures("cache")
def test_a_folder_that_may_not_be_entered_holds_no_model(tmp_path, forbid, tiny_folder):
    closed = tmp_path / "closed"
    closed.mkdir()
    forbid("is_file", lambda path: path.parent == closed)
    forbid("iterdir", lambda path: path == closed)
    assert tiny_folder in {entry.path for entry in inventory.inventory([tmp_path])}
    with pytest.raises(ModelNotFoundError, match="closed cannot be read: Permission denied"):
        list(inventory.inventory([closed]))


@pytest.mark.usefixtures("cache")
def test_a_model_that_cannot_be_read_is_listed_with_its_fault(tiny_folder, forbid):
    forbid("rglob", lambda path: path == tiny_folder)
    *_, entry = inventory.inventory([tiny_folder.parent])
    assert entry.path == tiny_folder
    assert "Permission denied" in entry.fault


@pytest.mark.usefixtures("cache")
def test_what_does_not_fit_into_memory_cannot_run(monkeypatch):
    monkeypatch.setattr(inventory, "machine_memory", lambda: 1000)
    entry = next(inventory.inventory())
    assert "GB of memory" in entry.fault


def test_the_command(cache, capsys):
    assert cli.main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["0.00", "float16", "256", "yes", "tiny/llama"]
    assert str(cache) in lines[2]
    assert "no    tiny/whisper" in lines[3]
    shutil.rmtree(cache)
    assert cli.main(["models"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1
