"""`entropix profile`, and `--set`: profiles from the command line."""

import json
import tomllib

import pytest

from entropix_mlx import Profile, cli
from entropix_mlx.profiles.profile import differences, read_source

SAMPLERS = Profile.load().samplers
"""The options of all samplers, as the profile `reference` has them."""


@pytest.fixture
def run(capsys):
    def run(*arguments):
        try:
            code = cli.main([str(argument) for argument in arguments])
        except SystemExit as stop:  # argparse's own refusals
            code = stop.code
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def mine(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text("# mine\n[thresholds]\nlow_entropy = 0.3\n[think]\ntext = ' Hm,'\n")
    return file


def test_show_prints_the_file_itself(run, mine):
    code, out, err = run("profile", "show", mine)
    assert (code, err) == (0, "")
    assert out.startswith(mine.read_text())
    assert tomllib.loads(out) == tomllib.loads(mine.read_text()), "all else is comments"
    code, out, _ = run("profile", "show", "reference")
    assert code == 0
    assert out.startswith(read_source("reference")[1])
    assert "# argmax: H below, and" in out


def test_diff_lists_what_differs(run, mine):
    code, out, _ = run("profile", "diff", "reference", mine)
    assert code == 0
    assert out == 'thresholds.low_entropy: 0.1 → 0.3\nthink.text: " Wait," → " Hm,"\n'
    assert run("profile", "diff", mine, mine) == (0, "", "the two profiles decide alike\n")
    assert differences(Profile.load(), Profile.load(mine))["think.text"] == (" Wait,", " Hm,")


def test_check_says_ok_or_names_the_field(run, mine):
    assert run("profile", "check", mine) == (0, f"{mine}: ok\n", "")
    mine.write_text("[thresholds]\nlow_entrpy = 0.3\n")
    code, out, err = run("profile", "check", mine)
    assert (code, out) == (2, "")
    assert f"{mine}: unknown field thresholds.low_entrpy; did you mean" in err


@pytest.mark.parametrize("arguments", [[], ["show"], ["show", "absent"], ["diff", "reference"]])
def test_a_mistake_is_exit_code_2(run, arguments):
    code, out, err = run("profile", *arguments)
    assert (code, out) == (2, "")
    assert "Traceback" not in err


def generate(run, folder, *arguments):
    trace = folder.parent / "trace.jsonl"
    code, out, err = run(
        "generate", "--model", folder, "-p", "x", "-m", "2", "--trace", trace, *arguments
    )
    header = json.loads(trace.read_text().splitlines()[0]) if code == 0 else {}
    return code, out, err, header.get("profile")


def test_set_changes_fields_of_the_profile(run, tiny_folder, mine):
    code, _, _, profile = generate(
        run, tiny_folder, "--profile", mine, "--no-think",
        "--set", "thresholds.low_entropy=0.2", "--set", "branch.width_follows_entropy = true",
        "--set", "baselines.n_sigma=2", "--set", "samplers.adaptive_temperature.min_entropy=1",
        "--set", "samplers.adaptive_temperature.polynomial=[3.5]",
        "--set", 'think.text=[" Hm,", 7]', "--set", "thresholds.branch_min_varentropy=inf",
    )  # fmt: skip
    assert code == 0
    assert profile["thresholds"]["low_entropy"] == 0.2
    assert profile["thresholds"]["branch_min_varentropy"] == "inf"
    assert profile["branch"]["width_follows_entropy"] is True
    assert profile["think"]["text"] == [" Hm,", 7]
    assert profile["think"]["max_insertions"] == 0, "the options have the last word"
    assert profile["name"] == "mine"
    assert profile["samplers"] == SAMPLERS | {
        "top_n_sigma": {"n_sigma": 2},
        "adaptive_temperature": {"min_entropy": 1, "polynomial": [3.5]},
    }


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("thresholds.low_entrpy=1", "unknown field thresholds.low_entrpy; did you mean"),
        ("threshold.low_entropy=1", "unknown field threshold; did you mean thresholds?"),
        ("base.top_p=2", "base.top_p must be a number between 0 and 1, not 2"),
        ("think.text=Wait", "a text needs quotes"),
        ("thresholds.low_entropy", "not FIELD=VALUE"),
        ("thresholds=1", "[thresholds] must be a table"),
        ("", "write FIELD=VALUE"),
    ],
)
def test_a_bad_assignment_is_named(run, tiny_folder, assignment, message):
    code, out, err, _ = generate(run, tiny_folder, "--set", assignment)
    assert (code, out) == (2, "")
    assert err.startswith(f"entropix: --set {assignment}: ")
    assert message in err
