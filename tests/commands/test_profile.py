"""`entropix calibrate --show`, and `--set`: profiles from the command line."""

import json

import pytest

from entropix_mlx import Profile
from entropix_mlx.profiles.profile import read_source
from entropix_mlx.profiles.sections import MOST_FORKS

SAMPLERS = Profile.load().samplers.model_dump()
"""The options of all samplers, as the profile `reference` has them."""


@pytest.fixture
def mine(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text("# mine\n[thresholds]\nlow_entropy = 0.3\n[think]\ntext = ' Hm,'\n")
    return file


def test_show_prints_the_file_itself(entropix, mine):
    code, out, err = entropix("calibrate", "--show", mine)
    assert (code, err) == (0, "")
    assert out == mine.read_text()
    assert entropix("calibrate", "--show", "reference")[1] == read_source("reference")[1]


def test_a_mistake_of_a_profile_is_named(entropix, mine):
    mine.write_text("[thresholds]\nlow_entrpy = 0.3\n")
    code, out, err = entropix("calibrate", "--show", mine)
    assert (code, out) == (2, "")
    assert f"{mine}: unknown field thresholds.low_entrpy; did you mean" in err
    assert entropix("calibrate", "--show", "absent")[:2] == (2, "")


@pytest.fixture
def profile_of(entropix, tiny_folder, tmp_path):
    """Generate with options, and return the profile in the header of the trace."""

    def profile_of(*arguments):
        trace = tmp_path / "trace.jsonl"
        asked = ("--model", tiny_folder, "-p", "x", "-m", "2", "--trace", trace)
        assert entropix("generate", *asked, *arguments)[0] == 0
        return json.loads(trace.read_text().splitlines()[0])["profile"]

    return profile_of


def test_set_changes_fields_of_the_profile(profile_of, mine):
    profile = profile_of(
        "--profile", mine, "--no-think",
        "--set", "thresholds.low_entropy=0.2", "--set", "branch.width = 4",
        "--set", "samplers.top_n_sigma.n_sigma=2", "--set", "samplers.xtc.threshold=0.2",
        "--set", 'think.text=[" Hm,", 7]', "--set", "thresholds.branch_min_varentropy=inf",
    )  # fmt: skip
    assert profile["thresholds"]["low_entropy"] == 0.2
    assert profile["thresholds"]["branch_min_varentropy"] == "inf"
    assert profile["branch"]["width"] == 4
    assert profile["think"]["text"] == [" Hm,", 7]
    assert profile["think"]["max_insertions"] == 0
    assert profile["name"] == "mine"
    assert profile["samplers"] == SAMPLERS | {
        "top_n_sigma": {"n_sigma": 2},
        "xtc": {"threshold": 0.2, "probability": 0.5},
    }


def test_interventions_have_options_of_their_own(profile_of, mine):
    mine.write_text("[think]\nmax_insertions = 0\n")
    own = ("--profile", mine)
    assert profile_of(*own)["think"]["max_insertions"] == 0
    assert profile_of(*own, "--think")["think"] == profile_of()["think"]
    assert profile_of(*own, "--think", "--no-think")["think"]["max_insertions"] == 0
    assert profile_of(*own, "--branch")["branch"]["max_branches"] == MOST_FORKS
    assert profile_of(*own, "--branch", "--no-branch")["branch"]["max_branches"] == 0


@pytest.mark.parametrize(
    ("assignment", "named"),
    [
        ("thresholds.low_entrpy=1", "thresholds.low_entrpy; did you mean"),
        ("threshold.low_entropy=1", "threshold; did you mean thresholds?"),
        ("base.top_p=2", "base.top_p"),
        ("think.text=Wait", "quotes"),
        ("thresholds.low_entropy", "FIELD=VALUE"),
        ("thresholds=1", "[thresholds]"),
        ("", "FIELD=VALUE"),
    ],
)
def test_a_bad_assignment_is_named(entropix, assignment, named):
    code, out, err = entropix("generate", "-p", "x", "--set", assignment)
    assert (code, out) == (2, "")
    assert err.startswith(f"entropix: --set {assignment}: ")
    assert named in err
