"""The table of samplers: what it says, how its mistakes are named, what a new sampler touches."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import entropix_mlx
from entropix_mlx import SAMPLERS, Profile, Settings
from entropix_mlx.errors import ProfileError, SamplerError
from entropix_mlx.samplers.registry import find_sampler, make_sampler

FANCY = """
[samplers.fancy]
help = "the tokens of at least a share of the top probability, twice that where it is sure"
takes = ["temperature"]

[samplers.fancy.options.share]
type = "number"
default = 0.25
low = 0
high = 0.5
help = "what a token must reach"
"""
FANCY_MODULE = '''"""A sampler that a test adds."""

from .baselines import baseline


def build(name, profile, given):
    """Build the sampler."""
    return baseline(name, profile, given, adjust)


def adjust(plan, measured, options):
    return plan._replace(min_p=plan.min_p + options["share"] * (1 + measured.metrics.margin))
'''


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_can_be_built(name):
    sampler = make_sampler(name)
    assert sampler.name == name
    profile = Profile.load()
    assert sampler.think == profile.think
    assert sampler.position_score == profile.position_score
    assert sampler.fork_rule == (profile.cntp if name == "cntp" else profile.branch)


def test_a_nearby_name_is_offered():
    with pytest.raises(SamplerError, match=r"no sampler 'greddy': did you mean greedy\?"):
        find_sampler("greddy")
    with pytest.raises(SamplerError, match="no sampler 'magic': choose one of entropix, greedy"):
        find_sampler("magic")


def test_what_a_sampler_takes():
    check = SAMPLERS["min_p"].check
    assert check({"top_k": np.int64(0), "temperature": np.float32(0.5)}) == {
        "top_k": 0,
        "temperature": 0.5,
    }
    assert type(check({"top_k": np.int64(0)})["top_k"]) is int
    with pytest.raises(SamplerError, match="cntp sampler takes no top_p or min_p: leave it out"):
        SAMPLERS["cntp"].check({"top_p": 0.5, "min_p": 0.5, "temperature": 1})
    with pytest.raises(SamplerError, match="top_k of the entropix sampler must be a whole number"):
        SAMPLERS["entropix"].check({"top_k": 0})
    with pytest.raises(SamplerError, match="top_k must be a whole number, not 2"):
        Settings(top_k=2.5)


def test_settings_that_fit_a_sampler():
    settings = Settings(sampler="min_p", temperature=0.5, top_p=0.9, top_k=0, seed=3)
    fitted = {name: spec.fitting(settings) for name, spec in SAMPLERS.items()}
    for name, each in fitted.items():
        each.check()
        assert (each.sampler, each.seed) == (name, 3)
    assert fitted["min_p"] == settings
    assert (fitted["cntp"].temperature, fitted["cntp"].top_p) == (0.5, None)
    assert (fitted["entropix"].top_p, fitted["entropix"].top_k) == (0.9, None)
    assert fitted["greedy"] == Settings(sampler="greedy", seed=3)


def test_a_profile_states_options_of_samplers(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text("[samplers.top_n_sigma]\nn_sigma = 2\n")
    profile = Profile.load(file)
    assert profile.samplers["top_n_sigma"] == {"n_sigma": 2}
    assert profile.samplers["adaptive_temperature"]["min_entropy"] == 0.5
    assert Profile.load().samplers["top_n_sigma"] == {"n_sigma": 1.0}
    both = profile.replace({"samplers": {"adaptive_temperature": {"min_entropy": 1}}})
    assert both.samplers["top_n_sigma"] == {"n_sigma": 2}
    assert both.samplers["adaptive_temperature"]["min_entropy"] == 1
    assert len(both.samplers["adaptive_temperature"]["polynomial"]) == 5


def test_options_are_still_read_where_older_files_have_them(tmp_path):
    file = tmp_path / "old.toml"
    file.write_text(
        "[baselines]\ntop_p = 0.8\nn_sigma = 2\nadaptive_min_entropy = 0.7\n"
        "adaptive_polynomial = [1, 2]\n"
    )
    profile = Profile.load(file)
    assert profile.baselines.top_p == 0.8
    moved = {name: profile.samplers[name] for name in ("top_n_sigma", "adaptive_temperature")}
    assert moved == {
        "top_n_sigma": {"n_sigma": 2},
        "adaptive_temperature": {"min_entropy": 0.7, "polynomial": [1, 2]},
    }
    newer = {"baselines": {"n_sigma": 2}, "samplers": {"top_n_sigma": {"n_sigma": 3}}}
    assert Profile.load().replace(newer).samplers["top_n_sigma"] == {"n_sigma": 3}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"top_n_sgma": {}}, r"x: unknown field samplers\.top_n_sgma; did you mean samplers\.top"),
        ({"top_n_sigma": {"sigma": 1}}, r"samplers\.top_n_sigma\.sigma; did you mean .*n_sigma"),
        ({"top_n_sigma": {"n_sigma": -1}}, r"n_sigma must be a number of at least 0, not -1"),
        ({"top_n_sigma": {"n_sigma": "a"}}, r"x: samplers\.top_n_sigma\.n_sigma must be a number"),
        ({"greedy": {"x": 1}}, r"unknown field samplers\.greedy\.x; known: none"),
        ({"top_n_sigma": 3}, r"\[samplers\.top_n_sigma\] must be a table"),
        (3, r"\[samplers\] must be a table"),
        ({"adaptive_temperature": {"polynomial": [1, float("inf")]}}, "each of which must be"),
    ],
)
def test_a_mistake_in_options_is_named(changes, message):
    with pytest.raises(ProfileError, match=message):
        Profile.load().replace({"samplers": changes}, "x")


@pytest.mark.slow
def test_a_new_sampler_is_a_module_and_a_table(tmp_path, tiny_folder):
    package = tmp_path / "copy" / "entropix_mlx"
    source = Path(entropix_mlx.__file__).parent
    shutil.copytree(source, package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "samplers" / "fancy.py").write_text(FANCY_MODULE)
    with (package / "profiles" / "samplers.toml").open("a", encoding="utf-8") as table:
        table.write(FANCY)

    def run(*arguments):
        environment = os.environ | {"PYTHONPATH": str(package.parent), "COLUMNS": "200"}
        done = subprocess.run(
            [sys.executable, "-m", "entropix_mlx", *map(str, arguments)],
            check=False,
            capture_output=True,
            text=True,
            cwd=package.parent,
            env=environment,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    for command in ("generate", "compare", "chat"):
        assert "fancy" in run(command, "--help")
    assert "# share = 0.25" in run("profile", "show", "reference")
    asked = ("--model", tiny_folder, "-p", "x", "-m", "3", "--temp", "0.5", "--json")
    found = run(
        "compare", "--sampler", "fancy", "--seeds", "1", *asked, "--set", "samplers.fancy.share=0.5"
    )
    assert json.loads(found)["results"][0]["sampler"] == "fancy"
