"""Converting: what is written, where, and what stays when it goes wrong."""

import errno
import json
from dataclasses import replace
from types import SimpleNamespace

import mlx.core as mx
import numpy as np
import pytest
from safetensors.numpy import load_file

from entropix_mlx import cli, load
from entropix_mlx.conversion import model_folder as output
from entropix_mlx.conversion import verify
from entropix_mlx.conversion.convert import convert
from entropix_mlx.conversion.recipe import Recipe
from entropix_mlx.conversion.verify import Comparison
from entropix_mlx.errors import OutputError, UnsupportedModelError, WeightsError
from tests.conftest import make_tiny_model
from tests.folders import write_folder

TOKENS = mx.array([[5, 1, 200, 77, 3]])


@pytest.fixture
def source(tmp_path, byte_tokenizer):
    model = make_tiny_model(hidden_size=64, intermediate_size=64)
    folder = write_folder(tmp_path / "source", model, byte_tokenizer, shards=2)
    (folder / "generation_config.json").write_text('{"eos_token_id": [257, 10]}')
    (folder / "modeling_tiny.py").write_text("raise SystemExit('must never run')")
    return folder


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_dense_conversion_keeps_every_bit(source, tmp_path):
    out = convert(source, tmp_path / "out")
    stored = [load_file(file) for file in sorted(source.glob("*.safetensors"))]
    written = load_file(out / "model.safetensors")
    assert written.keys() == stored[0].keys() | stored[1].keys()
    for shard in stored:
        for name, weight in shard.items():
            assert written[name].dtype == weight.dtype
            np.testing.assert_array_equal(written[name], weight)


def test_companions_are_copied_and_code_is_not(source, tmp_path):
    out = convert(source, tmp_path / "out")
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        assert (out / name).read_bytes() == (source / name).read_bytes()
    assert not (out / "modeling_tiny.py").exists()
    assert load(out)[1].eos_token_ids == {257, 10}


@pytest.mark.parametrize(
    "dtype", ["float16", pytest.param("bfloat16", marks=pytest.mark.bfloat16), "float32"]
)
def test_a_type_is_that_of_all_weights(source, tmp_path, dtype):
    out = convert(source, tmp_path / "out", Recipe(dtype=dtype))
    weights = mx.load(str(out / "model.safetensors"))
    assert {weight.dtype for weight in weights.values()} == {getattr(mx, dtype)}
    assert json.loads((out / "config.json").read_text())["torch_dtype"] == dtype


def test_large_models_are_split(source, tmp_path, monkeypatch):
    monkeypatch.setattr(output, "LARGEST_FILE", 60_000)
    out = convert(source, tmp_path / "out")
    index = json.loads((out / "model.safetensors.index.json").read_text())
    files = sorted(out.glob("*.safetensors"))
    assert len(files) > 2
    assert files[0].name == f"model-00001-of-{len(files):05d}.safetensors"
    assert all(file.stat().st_size < 70_000 for file in files)
    for file in files:
        assert {n for n, f in index["weight_map"].items() if f == file.name} == set(load_file(file))
    expected = load(source)[0](TOKENS).logits
    np.testing.assert_array_equal(load(out)[0](TOKENS).logits, expected)


def test_progress_counts_what_is_written(source, tmp_path):
    seen = []
    convert(source, tmp_path / "out", on_progress=lambda *state: seen.append(state))
    total = len(load_file(tmp_path / "out" / "model.safetensors"))
    assert seen == [(done, total) for done in range(1, total + 1)]


def test_layers_that_do_not_fit_the_groups_stay_dense(source, tmp_path, byte_tokenizer):
    out = convert(source, tmp_path / "out", Recipe(bits=4, group_size=64))
    written = load_file(out / "model.safetensors")
    assert "model.layers.0.mlp.up_proj.scales" in written
    assert "model.layers.0.self_attn.o_proj.scales" not in written  # its width is 4 heads of 8
    narrow = write_folder(tmp_path / "narrow", make_tiny_model(), byte_tokenizer)
    with pytest.raises(UnsupportedModelError, match="128"):
        convert(narrow, tmp_path / "none", Recipe(bits=4, group_size=128))
    assert not (tmp_path / "none").exists()


def test_numbers_that_a_type_cannot_hold_are_named(tmp_path, byte_tokenizer):
    model = make_tiny_model()
    model.model.norm.weight = mx.full((32,), 1e6)
    source = write_folder(tmp_path / "source", model, byte_tokenizer)
    with pytest.raises(WeightsError, match=r"model\.norm\.weight holds .* as float16"):
        convert(source, tmp_path / "out", Recipe(dtype="float16"))
    assert names_in(tmp_path) == ["source"]


def test_only_a_model_folder_is_replaced(source, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "config.json").write_text("dear diary")
    for force in (False, True):
        with pytest.raises(OutputError, match="out"):
            convert(source, out, force=force)
    assert (out / "config.json").read_text() == "dear diary"
    (out / "config.json").unlink()
    convert(source, out, force=True)
    convert(source, out, Recipe(bits=4), force=True)
    assert "tokenizer.json" in names_in(out)
    with pytest.raises(OutputError, match="out"):
        convert(out, out, force=True)
    assert names_in(tmp_path) == ["out", "source"]


@pytest.mark.parametrize(
    "name",
    [
        *(".git/HEAD", "thesis.txt", "adapters.safetensors", "Model.safetensors", "a/b"),
        *("config.json/thesis.txt", "model.safetensors/thesis.txt"),
    ],
)
def test_what_no_conversion_writes_is_never_replaced(source, tmp_path, name):
    out = convert(source, tmp_path / "out")
    file, first = out / name, name.split("/")[0]
    (out / first).unlink(missing_ok=True)
    file.parent.mkdir(exist_ok=True)
    file.write_text("precious")
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    with pytest.raises(OutputError, match=first):
        convert(source, out, force=True, on_progress=lambda *_: pytest.fail("it was begun"))
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before
    assert names_in(tmp_path) == ["out", "source"]


def test_what_comes_into_the_folder_meanwhile_is_kept(source, tmp_path):
    out = convert(source, tmp_path / "out")
    convert(source, out, force=True, on_progress=lambda *_: (out / "late.txt").write_text("kept"))
    assert (out / "late.txt").read_text() == "kept"
    assert names_in(tmp_path) == ["out", "source"]
    load(out)


def test_a_link_to_a_folder_is_followed_and_one_to_nothing_refused(source, tmp_path):
    (tmp_path / "places").mkdir()
    real = convert(source, tmp_path / "places" / "real")
    (tmp_path / "link").symlink_to("places/real")
    convert(source, tmp_path / "link", Recipe(bits=4), force=True)
    assert (tmp_path / "link").is_symlink()
    assert "quantization" in json.loads((real / "config.json").read_text())
    for target in ("nothing", "dangling"):  # the second is a circle
        (tmp_path / "dangling").symlink_to(target)
        with pytest.raises(OutputError, match="dangling"):
            convert(source, tmp_path / "dangling", on_progress=lambda *_: pytest.fail("begun"))
        (tmp_path / "dangling").unlink()
    assert names_in(tmp_path) == ["link", "places", "source"]
    assert names_in(tmp_path / "places") == ["real"]


def test_an_interrupt_leaves_what_was_there(source, tmp_path):
    out = convert(source, tmp_path / "out")
    before = (out / "model.safetensors").read_bytes()

    def interrupt(done, _total):
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(source, tmp_path / "new", on_progress=interrupt)
    with pytest.raises(KeyboardInterrupt):
        convert(source, out, Recipe(bits=4), force=True, on_progress=interrupt)
    assert (out / "model.safetensors").read_bytes() == before
    assert names_in(tmp_path) == ["out", "source"]


@pytest.mark.parametrize(("number", "done"), [(1, False), (2, False), (2, True)])
def test_an_interrupt_of_a_replacement_leaves_a_folder(source, tmp_path, monkeypatch, number, done):
    out = convert(source, tmp_path / "out")
    (out / "merges.txt").write_text("of the old one")
    renames = []

    def rename(path, target):
        renames.append(path)
        if len(renames) != number:
            return real(path, target)
        if done:
            real(path, target)
        raise KeyboardInterrupt

    real = output.Path.rename
    monkeypatch.setattr(output.Path, "rename", rename)
    with pytest.raises(KeyboardInterrupt):
        convert(source, out, force=True)
    assert ("merges.txt" in names_in(out)) is not done
    load(out)
    assert names_in(tmp_path) == ["out", "source"]


def test_a_full_disk_is_said_before_and_while_writing(source, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(output.shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
        with pytest.raises(OutputError, match="the disk is too full"):
            convert(source, tmp_path / "out")

    def fill(_folder, _plan, arrays):
        next(arrays)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("entropix_mlx.conversion.convert.write_weights", fill)
    with pytest.raises(OutputError, match="the disk is full; make room"):
        convert(source, tmp_path / "out")
    assert names_in(tmp_path) == ["source"]


def test_a_folder_that_cannot_be_made(source, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be written"):
        convert(source, tmp_path / "file" / "out")


@pytest.fixture
def run(source, tmp_path, capsys):
    def run(*options):
        arguments = ["convert", "--hf-path", str(source), "--mlx-path", str(tmp_path / "out")]
        try:
            code = cli.main([*arguments, *options])
        except SystemExit as stop:
            code = stop.code
        return code, *capsys.readouterr()

    return run


@pytest.mark.slow
def test_an_exact_conversion_is_verified(run):
    code, out, err = run("--verify")
    assert (code, err.splitlines()[-1]) == (0, "the copy is exact")
    assert "100.0%" in out


def test_a_broken_conversion_fails_its_verification(run):
    code, out, err = run("-q", "--q-bits", "2", "--verify")
    assert code == 1
    assert "perplexity of the copy" in out
    assert "is wrong: it diverges by" in err


GOOD = [(8, 0.0023, 0.968), (6, 0.035, 0.91), (5, 0.152, 0.8), (4, 0.69, 0.658), (3, 1.71, 0.4645)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "kl", "agreement", "fault"),
    [
        (Recipe(), 0.0, 1.0, None),
        pytest.param(Recipe(dtype="bfloat16"), 0.00007, 1.0, None, marks=pytest.mark.bfloat16),
        (Recipe(dtype="float16"), 0.01, 1.0, "diverges by 0.01 bits a token"),
        (Recipe(bits=8), 0.0023, 0.8, "80.0% of its most probable tokens"),
        *((Recipe(bits=bits), kl, share, None) for bits, kl, share in GOOD),
        (Recipe(bits=4), 0.456, 0.349, "at least 50%"),
        (Recipe(bits=2), 10.3, 0.06, "in 2 bits by at most 2"),
    ],
)
def test_each_precision_has_limits_that_good_copies_keep(recipe, kl, agreement, fault):
    difference = 0.0 if recipe.exact else 1.0
    found = Comparison(155, difference, kl, agreement, 31.0, 32.0)
    assert (found.fault(recipe) is None) if fault is None else fault in found.fault(recipe)
    assert replace(found, true_kl=0.4).fault(recipe) is not None


@pytest.mark.parametrize(
    ("number", "spoil", "options"),
    [
        (0, lambda logits: logits + 1e-3, []),
        (0, lambda logits: mx.where(mx.arange(258) == 3, mx.nan, logits), []),
        (1, lambda logits: mx.where(mx.arange(258) == 3, mx.inf, logits), ["-q", "--q-bits", "8"]),
        (-1, lambda logits: mx.where(mx.arange(258) == 3, mx.nan, logits), ["-q", "--q-bits", "8"]),
    ],
)
def test_a_wrong_copy_fails_its_verification(run, tmp_path, monkeypatch, number, spoil, options):
    def spoilt(path):
        tokens, logits = real(path)
        if path == str(tmp_path / "out"):
            logits[number] = spoil(logits[number])
        return tokens, logits

    real = verify.predict
    monkeypatch.setattr(verify, "predict", spoilt)
    code, out, err = run("--verify", *options)
    assert (code, "is wrong" in err) == (1, True)
    assert not options or out.count("nan") >= 2


@pytest.mark.parametrize("options", [["--q-bits", "4"], ["-q", "--q-bits", "7"], ["-q", "-d"]])
def test_options_that_make_no_sense(run, tmp_path, options):
    code, _, err = run(*options)
    assert code == 2
    assert "--q" in err
    assert not (tmp_path / "out").exists()
