"""Calibration: thresholds that give each strategy its share, and the profile that records them."""

import os

import pytest

from entropix_mlx import Profile, cli
from entropix_mlx.errors import ProfileError
from entropix_mlx.lab.calibrate import (
    PromptSet,
    builtin_prompts,
    calibrate,
)
from entropix_mlx.models.config import fingerprint
from entropix_mlx.profiles.profile import profile_for, resolve, user_folder
from entropix_mlx.profiles.writing import to_toml, write_profile
from tests.conftest import make_tiny_model

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def result(byte_tokenizer):
    return calibrate_tiny(byte_tokenizer)


def calibrate_tiny(tokenizer):
    prompts = builtin_prompts()
    few = PromptSet(prompts.fit[:12], prompts.held_out[:4])
    return calibrate(make_tiny_model(), tokenizer, "tiny", prompts=few, tokens=6, seed=3)


def test_the_same_seed_gives_the_same_file(result, byte_tokenizer):
    again = calibrate_tiny(byte_tokenizer)
    assert to_toml(result, "2026-01-01") == to_toml(again, "2026-01-01")


def test_the_file_is_the_profile(result, tmp_path):
    path = tmp_path / "sub" / "tiny.toml"
    write_profile(result, path, "2026-01-01")
    read = Profile.load(path)
    assert read.thresholds == result.thresholds
    assert read.adaptive == result.adaptive
    assert read.calibration == {"date": "2026-01-01"} | result.calibration
    assert read.calibration["model"] == "tiny"
    assert read.calibration["rates"].keys() >= {"argmax", "adaptive"}
    assert read.think.max_insertions == read.branch.max_branches == 0
    with pytest.raises(ProfileError):
        write_profile(result, path / "below-a-file.toml", "2026-01-01")


def test_a_profile_is_found_by_its_model(result, tiny_model):
    assert profile_for(tiny_model.config) == Profile.load()
    write_profile(result, user_folder() / "tiny.toml", "2026-01-01")
    (user_folder() / "broken.toml").write_text("[[")
    assert profile_for(tiny_model.config).name == "tiny"
    newer = result.replace({"name": "newer"})
    write_profile(newer, user_folder() / "zzz.toml", "2026-01-02")
    os.utime(user_folder() / "tiny.toml", (1, 1))
    assert profile_for(tiny_model.config).name == "newer"
    (user_folder() / "zzz.toml").unlink()
    other = make_tiny_model(hidden_size=64)
    assert fingerprint(other.config) != fingerprint(tiny_model.config)
    assert profile_for(other.config) == Profile.load()
    changed = resolve("auto", tiny_model.config, {"thresholds": {"low_entropy": 9.0}})
    assert changed.name == "tiny"
    assert changed.thresholds.low_entropy == 9.0
    assert resolve("reference", tiny_model.config) == Profile.load()


def test_the_command_shows_the_shares(result, tmp_path, monkeypatch, tiny_folder, capsys):
    monkeypatch.setattr("entropix_mlx.lab.calibrate.calibrate", lambda *_, **__: result)
    output = tmp_path / "own.toml"
    assert cli.main(["calibrate", "--model", str(tiny_folder), "-o", str(output)]) == 0
    out, err = capsys.readouterr()
    assert out == f"{output}\n"
    assert "argmax" in err
    assert Profile.load(output).thresholds == result.thresholds


def test_where_nothing_can_be_written_is_reported_before_anything_is_measured(tmp_path, capsys):
    assert cli.main(["calibrate", "--model", "no/such", "-o", str(tmp_path)]) == 2
    assert str(tmp_path) in capsys.readouterr().err


def test_prompts():
    prompts = builtin_prompts()
    assert len(prompts.fit) >= 40
    assert len(prompts.held_out) >= 20
    assert not set(prompts.fit) & set(prompts.held_out)
