"""The recipes of CONTRIBUTING.md, each followed in a copy of the package."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(
    r'^```(?:python|text)\n# (\S+?)(?:, below "([^\n]*)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL
)


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A folder with the package in which every recipe was followed."""
    folder = tmp_path_factory.mktemp("clone")
    shutil.copytree(ROOT / "entropix_mlx", folder / "entropix_mlx", symlinks=False)
    for name, place, code in BLOCK.findall((ROOT / "CONTRIBUTING.md").read_text("utf-8")):
        file = folder / name
        if not place:
            file.write_text(code, "utf-8")
            continue
        lines = file.read_text("utf-8").splitlines()
        assert lines.count(place) == 1, f"{name} has no line {place!r}"
        at = lines.index(place) + 1
        file.write_text("\n".join([*lines[:at], *code.splitlines(), *lines[at:]]), "utf-8")
    return folder


@pytest.fixture
def run(clone, tiny_folder):
    def run(*arguments):
        command = [sys.executable, "-m", "entropix_mlx", *arguments, "--model", tiny_folder]
        environment = os.environ | {"PYTHONPATH": str(clone)}
        done = subprocess.run(
            command, cwd=clone, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_a_sampler_an_intervention_and_a_command(run):
    assert run("count", "abc").strip() == "3"
    answer = run("generate", "-p", "Hi", "--sampler", "eta", "--seed", "1", "--jsonl", "-m", "60")
    assert '"inserted"' in answer  # the random model draws improbable tokens
