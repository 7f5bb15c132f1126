"""Profiles: what is read, and how mistakes are named."""

import pytest

from entropix_mlx import Profile
from entropix_mlx.errors import ProfileError
from entropix_mlx.profiles.profile import builtin_names, differences


@pytest.fixture
def written(tmp_path):
    def write(text):
        file = tmp_path / "mine.toml"
        file.write_text(text)
        return file

    return write


def test_a_field_that_there_is_no_more_is_passed_over_and_told(tmp_path, caplog):
    file = tmp_path / "old.toml"
    file.write_text("[branch]\nentropy_weight = 0.2\nwidth = 3\n")
    with caplog.at_level("INFO"):
        assert Profile.load(file).branch.width == 3
    assert f"{file}: branch.entropy_weight is ignored" in caplog.text
    assert "count standard errors now" in caplog.text


def test_reference_has_the_published_numbers():
    profile = Profile.load()
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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[thresholds]\nlow_entrpy = 1", r"thresholds\.low_entrpy; did you mean .*low_entropy\?"),
        ("[threshold]\nlow_entropy = 1", "unknown field threshold; did you mean thresholds"),
        ("[base]\ntop_p = 1.5", r"base\.top_p must be a number between 0 and 1, not 1\.5"),
        ("[base]\ntop_k = 0", r"base\.top_k must be a whole number of at least 1, not 0"),
        ("[base]\ntop_k = 2.5", r"base\.top_k must be a whole number, not 2\.5"),
        ("[base]\ntop_k = true", r"base\.top_k must be a whole number, not True"),
        ("[base]\ntemperature = nan", r"base\.temperature must be"),
        ("[base]\ntemperature = inf", r"base\.temperature must be"),
        ("[branch]\ntemperature_slope = inf", r"branch\.temperature_slope must be"),
        ("[thresholds]\nlow_entropy = nan", r"thresholds\.low_entropy must be"),
        ("[base]\nmin_p = '0.1'", r"base\.min_p must be a number, not '0\.1'"),
        ("base = 3", r"\[base\] must be a table"),
        ("[think]\ntext = ''", r"think\.text must be a text, a token id"),
        ("[think]\ntext = []", r"think\.text must be"),
        ("[think]\ntext = 1.5", r"think\.text must be"),
        ("[think]\nmin_gap = 0", r"think\.min_gap must be a whole number of at least 1"),
        ("[adaptive]\nmin_top_k = 200", r"adaptive\.min_top_k \(200\) exceeds"),
        ("[baselines]\nadaptive_polynomial = [1, 'x']", r"adaptive_temperature\.polynomial"),
        ("name = 3", "name must be a text"),
        ("extends = 'nothing'", "no profile '.*nothing'"),
        ("extends = 3", "extends must name"),
        ("[base\n", "not valid TOML"),
        (f"[base]\ntop_k = {'9' * 5000}", "not valid TOML"),
        (f"x = {'[' * 20_000}", "nested too deeply"),
        (f"[base]\ntop_k = {'9' * 20}", r"base\.top_k must be a whole number of at most 16777216"),
        ("[thresholds]\nlow_entropy = 1e39", r"low_entropy must be infinite or up to 1e\+15"),
        ("[branch]\nmargin = 1e39", r"branch\.margin must be a number of at most 1e\+15"),
        ("[samplers.top_n_sigma]\nn_sgma = 1", r"did you mean samplers\.top_n_sigma\.n_sigma\?"),
    ],
)
def test_a_mistake_is_named(written, text, message):
    with pytest.raises(ProfileError, match=message):
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


def test_a_builtin_profile_is_read_once():
    assert Profile.load() is Profile.load("reference")


def test_an_absent_profile_lists_the_builtin_ones():
    with pytest.raises(ProfileError, match="no profile 'nope': give a TOML file, or one of"):
        Profile.load("nope")


def test_a_file_may_extend_one_beside_it(tmp_path, monkeypatch):
    (tmp_path / "base.toml").write_text("[thresholds]\nlow_entropy = 0.5\n")
    (tmp_path / "mine.toml").write_text("extends = 'base.toml'\n[base]\ntop_k = 9\n")
    profile = Profile.load(tmp_path / "mine.toml")
    assert (profile.thresholds.low_entropy, profile.base.top_k) == (0.5, 9)


def test_files_that_extend_each_other(tmp_path):
    for one, other in (("a", "b"), ("b", "a")):
        (tmp_path / f"{one}.toml").write_text(f"extends = '{other}.toml'")
    with pytest.raises(ProfileError, match="extends must name another"):
        Profile.load(tmp_path / "a.toml")


def test_a_file_that_extends_itself(written):
    file = written("")
    file.write_text(f"extends = '{file}'")
    with pytest.raises(ProfileError, match="extends must name another"):
        Profile.load(file)
