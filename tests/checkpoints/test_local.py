"""`entropix models`: what is listed, and what is said of it."""

import errno
import shutil
from pathlib import Path

import mlx.core as mx
import pytest
from huggingface_hub import constants

from entropix_mlx import cli
from entropix_mlx.checkpoints import hub, local
from entropix_mlx.checkpoints.convert import convert
from entropix_mlx.checkpoints.hub import default_model, fitting_offers, locate
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
    monkeypatch.setattr(local, "demo_model", lambda: None)
    return cache


def test_the_cache_is_listed_newest_version_each(cache):
    runs, refused = local.inventory()
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
    convert(source, own / "packed", bits=3)
    write_gguf(own / "tiny.gguf", make_tiny_model())
    (own / "notes").mkdir()
    listed = {entry.path.name: entry for entry in local.inventory([own])}
    precisions = [listed[name].precision for name in ("dense", "packed", "tiny.gguf")]
    assert precisions == ["float32", "3 bits", "32 bits"]
    assert "notes" not in listed
    assert {entry.path for entry in local.inventory([source])} >= {source}
    with pytest.raises(ModelNotFoundError, match="absent"):
        list(local.inventory([tmp_path / "absent"]))


def test_a_cache_that_is_no_folder_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelNotFoundError):
        list(local.inventory())


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
    assert tiny_folder in {entry.path for entry in local.inventory([tmp_path])}
    with pytest.raises(ModelNotFoundError, match="closed cannot be read: Permission denied"):
        list(local.inventory([closed]))


@pytest.mark.usefixtures("cache")
def test_a_model_that_cannot_be_read_is_listed_with_its_fault(tiny_folder, forbid):
    forbid("rglob", lambda path: path == tiny_folder)
    *_, entry = local.inventory([tiny_folder.parent])
    assert entry.path == tiny_folder
    assert "Permission denied" in entry.fault


def test_the_command(cache, capsys):
    assert cli.main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["0.00", "float16", "256", "yes", "tiny/llama"]
    assert str(cache) in lines[2]
    assert "no    tiny/whisper" in lines[3]
    shutil.rmtree(cache)
    assert cli.main(["models"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_lm_studios_models_are_listed_and_named_as_on_the_hub(
    cache, tmp_path, byte_tokenizer, monkeypatch
):
    studio = tmp_path / "studio"
    folder = write_folder(studio / "owner" / "dense", make_tiny_model(), byte_tokenizer)
    (studio / "owner" / "packed").mkdir(parents=True)
    file = write_gguf(studio / "owner" / "packed" / "tiny.gguf", make_tiny_model())
    (studio / "owner" / "packed" / "mmproj-tiny.gguf").write_bytes(b"")
    for module in (hub, local):
        monkeypatch.setattr(module, "LM_STUDIO", (str(studio), str(tmp_path / "absent")))
    listed = {entry.name: entry for entry in local.inventory()}
    assert listed["owner/dense"].path == folder
    assert listed["owner/packed"].path == file
    assert locate("owner/dense") == folder
    assert locate("owner/packed") == file


def test_a_folder_of_several_gguf_files_asks_for_one(tmp_path):
    for name in ("a.gguf", "b.gguf"):
        write_gguf(tmp_path / name, make_tiny_model())
    with pytest.raises(ModelNotFoundError, match="name one"):
        locate(tmp_path)


def test_weights_are_downloaded_last_and_no_code_at_all(tiny_folder, monkeypatch):
    asked = []

    def fetch(_, allow_patterns, local_files_only):
        asked.append(allow_patterns)
        return str(tiny_folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    assert locate("owner/name") == tiny_folder
    assert "config.json" in asked[0]
    weights = [any(name.endswith(".safetensors") for name in patterns) for patterns in asked]
    assert weights == [False, False, True]
    assert not any(name.endswith((".py", ".bin")) for patterns in asked for name in patterns)


def test_no_such_model(tmp_path, monkeypatch):
    (tmp_path / "notes.txt").write_text("hello")
    names = [tmp_path / "absent" / "deep" / "er", tmp_path / "notes.txt", "some/model", ""]
    for name in (*names, "~nobody-at-all/m", "a\0b"):
        with pytest.raises(ModelNotFoundError):
            locate(name)
    with pytest.raises(ModelNotFoundError):
        locate("some/model", offline=True)
    monkeypatch.setattr(hub, "demo_model", lambda: None)
    monkeypatch.setattr(hub, "OFFERS", ())
    with pytest.raises(ModelNotFoundError):
        default_model()


def test_offers_fit_the_memory():
    names = [[offer.name for offer in fitting_offers(gb * 10**9)] for gb in (1, 8, 64)]
    assert [len(some) for some in names] == [1, 6, 7]
    assert all(some[0] == hub.DEMO_NAME for some in names)
