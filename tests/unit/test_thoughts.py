"""Calibrating thoughts: what a text does at a place, which one is kept, going on after a stop."""

import json
from types import SimpleNamespace

import pytest

from entropix_mlx import Profile, Settings
from entropix_mlx.decoding.decode import decode
from entropix_mlx.decoding.job import Job
from entropix_mlx.decoding.prose import Place
from entropix_mlx.errors import OutputError
from entropix_mlx.lab import thoughts
from entropix_mlx.lab.asking import Progress
from entropix_mlx.lab.gains import OFF, Gain, _gain, without_harm
from entropix_mlx.lab.insertions import FOLLOWING, Effect, Spot, Stretch, Trials, spots
from entropix_mlx.lab.journal import Journal
from entropix_mlx.lab.thoughts import choose
from tests.tui.conftest import make_step

PROMPT = list(b"The quick brown fox")
OFF_PROFILE = Profile.load().replace(OFF["think"]).replace(OFF["branch"])


@pytest.mark.slow
@pytest.mark.usefixtures("anywhere")
def test_an_effect_is_the_difference_to_the_same_answer(tiny_model, byte_tokenizer, monkeypatch):
    monkeypatch.setattr(byte_tokenizer, "_eos_token_ids", set())
    settings = Settings(profile=OFF_PROFILE, seed=3, max_tokens=30)
    policy = settings.policy()
    steps = list(decode(tiny_model, byte_tokenizer, Job.of_settings(PROMPT, settings, policy)))
    found = list(spots(byte_tokenizer, PROMPT, steps, seed=3))
    assert len(found) == 30 - 8
    spot = found[4]
    assert spot.answer == tuple(step.token for step in steps[:5])
    assert spot.control == Stretch.of(steps[5 : 5 + FOLLOWING])
    effects = {}
    Trials(tiny_model, byte_tokenizer, policy).run(
        [(spot, " Hm."), (spot, 7), (found[6], " Hm.")],
        lambda n, effect: effects.update({n: effect}),
    )
    inserted = byte_tokenizer.encode(" Hm.")
    job = Job([*PROMPT, *spot.answer, *inserted], policy, 3, max_tokens=FOLLOWING)
    treated = Stretch.of(list(decode(tiny_model, byte_tokenizer, job)))
    assert not effects[0].dropped
    assert effects[0].logprob == pytest.approx(treated.logprob - spot.control.logprob, abs=1e-4)
    assert effects[0].entropy == pytest.approx(treated.entropy - spot.control.entropy, abs=1e-4)
    assert set(effects) == {0, 1, 2}


def a_spot(number):
    return Spot((1, 2), (number,), number, Place.SENTENCE, "", Stretch(-1.0, 1.0))


class ScriptedTrials:
    """Texts that do what a table says, more or less."""

    def __init__(self, table):
        self.table = table
        self.asked = []

    def run(self, asked, on_effect):
        for number, (spot, text) in enumerate(asked):
            self.asked.append(text)
            shift = 0.01 * (spot.seed % 5 - 2)
            on_effect(number, Effect(self.table[text] + shift, -self.table[text], dropped=False))


@pytest.fixture
def asker(monkeypatch):
    monkeypatch.setattr(thoughts, "candidates", lambda *_: ["bad", "good", "fair", "poor"])
    config = SimpleNamespace(vocab_size=9)
    return lambda **more: SimpleNamespace(
        seed=0, tokenizer=None, model=SimpleNamespace(config=config), progress=Progress(**more)
    )


@pytest.mark.parametrize(("shift", "harms"), [(0.0, False), (-1.0, True)])
def test_the_best_text_is_kept_and_measured_at_other_places(asker, shift, harms):
    table = {"bad": -0.5, "good": 0.2, "fair": 0.1, "poor": -0.1}
    trials = ScriptedTrials({text: value + shift for text, value in table.items()})
    choice = choose(asker(), trials, [a_spot(number) for number in range(150)])
    assert choice.kept.text == "good"
    assert len(choice.kept.effects) == 150 - thoughts.FIRST_SPOTS - thoughts.SECOND_SPOTS
    assert [one.text for one in choice.tried] == ["good", "fair", "poor", "bad"]
    assert trials.asked.count("bad") == thoughts.FIRST_SPOTS
    assert choice.harms is harms
    expected = {"text": "good"} | ({"max_insertions": 0} if harms else {})
    assert choice.changes() == expected
    low, high = choice.record()["kept"]["total"][1:]
    assert low <= table["good"] + shift <= high


def test_where_no_thought_can_stand_none_is_chosen(asker):
    assert choose(asker(), ScriptedTrials({}), []) is None


def test_trials_that_were_stopped_go_on(asker, tmp_path):
    table = {"bad": -0.5, "good": 0.2, "fair": 0.1, "poor": -0.1}
    found = [a_spot(number) for number in range(60)]
    path = tmp_path / "x.partial.jsonl"

    def stop(done, total):
        if done == 59:
            raise KeyboardInterrupt

    stopped = asker(path=path, tell=stop)
    stopped.progress.begin("subject")
    with pytest.raises(KeyboardInterrupt):
        choose(stopped, ScriptedTrials(table), found)
    path.write_bytes(path.read_bytes() + b'["first", 60, [0.')  # cut off
    again, trials = asker(path=path, resume=True), ScriptedTrials(table)
    again.progress.begin("subject")
    whole = choose(asker(), ScriptedTrials(table), found)
    assert choose(again, trials, found) == whole
    first, second = thoughts.FIRST_SPOTS, thoughts.SECOND_SPOTS
    assert len(trials.asked) == 4 * first + 3 * second + (60 - first - second) - 59


def test_a_journal_of_something_else_is_refused(tmp_path):
    path = tmp_path / "findings"
    Journal(path, {"seed": 1}).add("a", 0, [1])
    assert Journal(path, {"seed": 1}, resume=True).get("a", 0) == [1]
    with pytest.raises(OutputError, match="another calibration"):
        Journal(path, {"seed": 2}, resume=True)
    for damaged in ("[[", json.dumps({"seed": 1}) + "\n7"):
        path.write_text(damaged + "\n")
        with pytest.raises(OutputError, match=r"damaged.*without --resume"):
            Journal(path, {"seed": 1}, resume=True)
    assert Journal(path, {"seed": 2}).get("a", 0) is None, "begun anew"


def test_rounding_does_no_harm():
    """Answers that an intervention never touched are alike, whatever shared their passes."""
    pairs = []
    for number in range(20):
        one = make_step(0, "x", logprob=-1.0 - 1e-6 * number)
        pairs.append(([one], [make_step(0, "x", logprob=-1.0)]))
    assert not _gain("think", "all", pairs).harms


def test_what_does_harm_is_left_out():
    bad, unclear = (-0.2, -0.1) * 20, (-0.2, 0.3) * 20
    found = [
        Gain("think", "all", unclear, unclear, 0.1),
        Gain("branch", "all", bad, bad, 1.0),
        Gain("resample", "code", bad, bad, 0.0),
    ]
    profile = without_harm(Profile.load(), found)
    assert profile.branch.max_branches == 0
    assert profile.think == Profile.load().think
    assert profile.thresholds == Profile.load().thresholds, "harmful to one kind only"
    assert found[1].to_dict()["gain_a_forward_token"] == -0.15
