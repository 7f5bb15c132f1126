"""Profiles: what is read, and how mistakes are named."""

import pytest

from entropix_mlx import Profile
from entropix_mlx.errors import ProfileError
from entropix_mlx.profiles.profile import builtin_names, differences


@pytest.fixture
def written(tmp_path):
    def write(text, name="mine.toml"):
        file = tmp_path / name
        file.write_text(text)
        return file

    return write


def test_reference_has_the_published_numbers():
    profile = Profile.load()
    assert Profile.load("reference") is profile, "it is read once"
    assert (profile.base.temperature, profile.base.top_p) == (0.666, 0.90)
    assert (profile.base.top_k, profile.base.min_p) == (27, 0.03)
    assert profile.adaptive.candidates == 5
    assert profile.think.text == " Wait,"


def test_a_file_states_only_what_it_changes(written):
    profile = Profile.load(written("[thresholds]\nlow_entropy = 0.5\n"))
    assert profile.name == "mine"
    assert profile.thresholds.low_entropy == 0.5
    assert profile.thresholds.low_varentropy == 0.1
    assert profile.base == Profile.load().base


def test_a_threshold_may_be_infinite(written):
    profile = Profile.load(written("[thresholds]\nbranch_min_varentropy = inf\n"))
    assert profile.thresholds.branch_min_varentropy == float("inf")
    same = {"thresholds": {"branch_min_varentropy": "inf"}}  # as JSON spells it
    assert Profile.load().replace(same).thresholds == profile.thresholds


def test_every_builtin_profile_loads():
    assert "reference" in builtin_names()
    for name in builtin_names():
        assert Profile.load(name).name == name


HUGE = "9" * 20
MISTAKES = {
    "base.top_p": ["1.5"],
    "base.top_k": ["0", "2.5", "true", HUGE],
    "base.min_p": ["'0.1'"],
    "base.temperature": ["nan", "inf"],
    "branch.temperature_slope": ["inf"],
    "branch.margin": ["1e39"],
    "thresholds.low_entropy": ["nan", "1e39"],
    "think.text": ["''", "[]", "1.5"],
    "think.min_gap": ["0"],
    "adaptive.min_top_k": ["200"],
    "abstain.score": ["'nothing'"],
}


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field in MISTAKES for value in MISTAKES[field]]
)
def test_an_impossible_value_is_named(written, field, value):
    section, name = field.split(".")
    file = written(f"[{section}]\n{name} = {value}")
    with pytest.raises(ProfileError, match=rf"^{file}: {section}\.{name} "):
        Profile.load(file)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[thresholds]\nlow_entrpy = 1", r"thresholds\.low_entropy\?"),
        ("[threshold]\nlow_entropy = 1", r"thresholds\?"),
        ("[samplers.top_n_sigma]\nn_sgma = 1", r"samplers\.top_n_sigma\.n_sigma\?"),
        ("[samplers.top_n_sgma]\nn_sigma = 1", r"samplers\.top_n_sigma"),
        ("[samplers.top_n_sigma]\nn_sigma = -1", "n_sigma"),
        ("[samplers.greedy]\nx = 1", r"samplers\.greedy"),
        ("[samplers]\ntop_n_sigma = 3", r"\[samplers\.top_n_sigma\]"),
        ("samplers = 3", r"\[samplers\]"),
        ("base = 3", r"\[base\]"),
        ("name = 3", "name"),
        ("extends = 'nothing'", "nothing"),
        ("extends = 3", "extends"),
        ("extends = 'mine.toml'", "extends"),
        ("[base\n", "TOML"),
        (f"[base]\ntop_k = {'9' * 5000}", "TOML"),
        (f"x = {'[' * 20_000}", "deep"),
    ],
)
def test_a_mistake_is_named(written, text, named):
    with pytest.raises(ProfileError, match=named):
        Profile.load(written(text))


def test_a_record_of_calibration_decides_nothing():
    calibrated, reference = Profile.load("smollm2-135m-instruct"), Profile.load()
    assert calibrated.calibration
    for one, other in ((calibrated, reference), (reference, calibrated)):
        found = differences(one, other)
        assert "thresholds.low_entropy" in found
        assert not [name for name in found if "calibration" in name]
    changed = reference.replace({"samplers": {"top_n_sigma": {"n_sigma": 2}}})
    assert differences(reference, changed) == {"samplers.top_n_sigma.n_sigma": (1.0, 2)}


def test_an_absent_profile_lists_the_builtin_ones():
    with pytest.raises(ProfileError, match=r"nope.* reference"):
        Profile.load("nope")


def test_a_file_may_extend_one_beside_it(written):
    written("[thresholds]\nlow_entropy = 0.5\n", "base.toml")
    profile = Profile.load(written("extends = 'base.toml'\n[base]\ntop_k = 9\n"))
    assert (profile.thresholds.low_entropy, profile.base.top_k) == (0.5, 9)


def test_files_that_extend_each_other(written):
    written("extends = 'mine.toml'", "other.toml")
    with pytest.raises(ProfileError, match="extends"):
        Profile.load(written("extends = 'other.toml'"))
