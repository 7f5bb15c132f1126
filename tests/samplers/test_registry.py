"""The table of samplers: what it says, how its mistakes are named, what a new sampler touches."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import entropix_mlx
from entropix_mlx import SAMPLERS, Profile
from entropix_mlx.errors import SamplerError
from entropix_mlx.samplers.registry import find_sampler, make_sampler

FANCY = {
    "sampler_specs.py": (
        'SamplerSpec("temperature", ',
        'SamplerSpec("fancy", "at least a share", ("temperature",), "fancy"),\n        ',
    ),
    "sections.py": ("    xtc: Xtc\n", "    fancy: dict[str, float]\n"),
    "reference.toml": ("[samplers.xtc]", "[samplers.fancy]\nshare = 0.25\n\n"),
}
"""By file of the profiles: a place, and what a new sampler adds before it."""
FANCY_MODULE = '''"""A sampler that a test adds."""

from . import baselines


def build(name, profile, given):
    """Build the sampler."""
    return baselines.build(name, profile, given, adjust)


def adjust(plan, measured, options):
    return plan._replace(min_p=plan.min_p + options["share"] * (1 + measured.metrics.margin))
'''


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_can_be_built(name):
    assert make_sampler(name).name == name


@pytest.mark.parametrize(("name", "offered"), [("greddy", "greedy"), ("magic", "entropix, greedy")])
def test_an_unknown_sampler_is_refused_with_names_to_choose_from(name, offered):
    with pytest.raises(SamplerError, match=offered):
        find_sampler(name)


@pytest.mark.parametrize(
    ("sampler", "given", "named"),
    [
        ("greedy", {"top_p": 0.5, "min_p": 0.5}, "top_p or min_p"),
        ("entropix", {"top_k": 0}, "top_k"),
        ("temperature", {"top_k": 2.5}, "top_k"),
    ],
)
def test_what_a_sampler_does_not_take_is_named(sampler, given, named):
    with pytest.raises(SamplerError, match=named):
        SAMPLERS[sampler].check(given)


def test_a_profile_states_options_of_samplers(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text("[samplers.top_n_sigma]\nn_sigma = 2\n")
    profile = Profile.load(file)
    assert profile.samplers.top_n_sigma.n_sigma == 2
    assert profile.samplers.xtc.threshold == 0.1
    assert Profile.load().samplers.top_n_sigma.n_sigma == 1.0
    both = profile.replace({"samplers": {"xtc": {"threshold": 0.3}}})
    assert both.samplers.top_n_sigma.n_sigma == 2
    assert (both.samplers.xtc.threshold, both.samplers.xtc.probability) == (0.3, 0.5)


@pytest.mark.slow
def test_a_new_sampler_is_a_module_a_row_and_its_options(tmp_path, tiny_folder):
    package = tmp_path / "copy" / "entropix_mlx"
    source = Path(entropix_mlx.__file__).parent
    shutil.copytree(source, package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "samplers" / "fancy.py").write_text(FANCY_MODULE)
    for name, (place, addition) in FANCY.items():
        file = package / "profiles" / name
        text = file.read_text("utf-8")
        assert text.count(place) == 1
        file.write_text(text.replace(place, addition + place), "utf-8")

    def run(*arguments):
        environment = os.environ | {"PYTHONPATH": str(package.parent), "COLUMNS": "200"}
        command = [sys.executable, "-m", "entropix_mlx", *map(str, arguments)]
        return subprocess.check_output(command, text=True, cwd=package.parent, env=environment)

    assert "fancy" in run("generate", "--help")
    assert "share = 0.25" in run("calibrate", "--show", "reference")
    asked = ("--model", tiny_folder, "-p", "x", "-m", "3", "--temp", "0.5", "--json")
    changed = ("--seed", "1", "--set", "samplers.fancy.share=0.5")
    assert json.loads(run("generate", "--sampler", "fancy", *asked, *changed))["text"]
