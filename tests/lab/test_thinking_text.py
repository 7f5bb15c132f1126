"""Calibrating thoughts: what a text does at a place, which one is kept, going on after a stop."""

import json
import math
from types import SimpleNamespace

import pytest

from entropix_mlx import Profile
from entropix_mlx.answer.continuation import Stretch, gain
from entropix_mlx.answer.interventions.prose import Place
from entropix_mlx.errors import OutputError
from entropix_mlx.lab.ask_model import Answered, Asker, Progress
from entropix_mlx.lab.calibration import thinking_text
from entropix_mlx.lab.calibration.ablation import (
    Compared,
    Gain,
    _gain,
    without_harm,
)
from entropix_mlx.lab.calibration.insertions import (
    FOLLOWING,
    LEAST_FOLLOWING,
    Effect,
    Spot,
    Trials,
    spots,
)
from entropix_mlx.lab.calibration.interventions import (
    BRANCH,
    OFF,
    only,
    sampler,
    without,
)
from entropix_mlx.lab.calibration.journal import Journal
from entropix_mlx.lab.calibration.thinking_text import choose
from entropix_mlx.settings import ResolvedSettings, Settings
from tests.conftest import run_answer
from tests.tui.conftest import make_step

BARE = without(Profile.load(), *OFF)
EVERYWHERE = {"thresholds": {"branch_max_entropy": 99.0, "branch_min_varentropy": 0.0}}


@pytest.fixture
def endless(byte_tokenizer, monkeypatch):
    monkeypatch.setattr(byte_tokenizer, "_eos_token_ids", set())
    return byte_tokenizer


def an_asker(model, tokenizer, **progress):
    return Asker(model, tokenizer, 3, Progress(**progress))


def tokens_of(spot):
    return [step.token for step in spot.control]


def follow(model, tokenizer, prompt, profile, tokens=FOLLOWING):
    settings = Settings(max_tokens=tokens, speculation="off", seed=3)
    resolved = ResolvedSettings(settings, sampler(profile), 3)
    return run_answer(model, tokenizer, prompt, resolved)


@pytest.mark.slow
@pytest.mark.usefixtures("anywhere")
def test_an_effect_is_the_difference_to_the_same_answer(tiny_model, endless):
    asker = an_asker(tiny_model, endless)
    (answer,) = asker.answers("control", ["Hello"], 30, profile=BARE)
    found = list(spots(endless, answer, BARE.think))
    assert max(spot.number for spot in found) == 30 - LEAST_FOLLOWING
    spot = found[1]
    at = spot.number
    assert spot.control == answer.steps[at:]
    control = Stretch.of(spot.control[:FOLLOWING])
    trials = Trials(asker, sampler(BARE))
    asked = [(spot, " Hm."), (spot, 7), (found[2], " Hm.")]
    effect, *others = trials.effects("tried", asked)
    treated = Stretch.of(follow(tiny_model, endless, [*spot.where, *endless.encode(" Hm.")], BARE))
    assert not effect.dropped
    assert effect.logprob == pytest.approx(treated.logprob - control.logprob, abs=1e-4)
    assert effect.entropy == pytest.approx(treated.entropy - control.entropy, abs=1e-4)
    assert len(others) == 2
    (again,) = trials.again("again", [spot], seed=50)
    assert again.where == spot.where
    assert again.answer.steps[:at] == answer.steps[:at]
    assert tokens_of(again) != tokens_of(spot)
    (same,) = trials.again("the same", [spot], seed=3)
    assert tokens_of(same) == tokens_of(spot)[:FOLLOWING]
    (letter,) = asker.answers("letter", ["Write a letter"], 30, profile=BARE)
    assert not list(spots(endless, letter, BARE.think)), "no thought stands in a letter"


@pytest.mark.slow
@pytest.mark.usefixtures("anywhere")
def test_where_a_text_must_gain_its_effect_is_measured_behind_what_decides(tiny_model, endless):
    asker = an_asker(tiny_model, endless)
    (answer,) = asker.answers("control", ["Hello"], 60, profile=BARE)
    found = [spot for spot in spots(endless, answer, BARE.think) if spot.number < 20]
    watch = 6
    free = BARE.replace({"think": {"watch": watch, "loop_length": 0}})
    effects = {}
    for name, least in (("free", -math.inf), ("strict", 0.0), ("never", 99.0)):
        rule = free.replace({"think": {"least_gain": least}})
        trials = Trials(asker, sampler(rule))
        effects[name] = trials.effects(name, [(spot, " Hm.") for spot in found])
    assert not any(effect.dropped for effect in effects["free"])
    assert all(effect.dropped for effect in effects["never"])
    kept = [not effect.dropped for effect in effects["strict"]]
    assert len(set(kept)) == 2, "some gain, and some do not"
    for spot, effect in zip(found, effects["strict"], strict=True):
        inserted = endless.encode(" Hm.")
        where = [*spot.where, *inserted]
        after = follow(tiny_model, endless, where, free, watch + FOLLOWING)
        control = spot.control[: watch + FOLLOWING]
        assert effect.dropped == (gain(after[:watch], control[:watch]) < 0)
        behind = gain(after[watch:], control[watch:])
        assert effect.dropped or effect.total == pytest.approx(behind, abs=1e-4)


@pytest.mark.slow
def test_an_arm_is_the_whole_answer_although_it_goes_on_from_the_control(tiny_model, endless):
    asker = an_asker(tiny_model, endless)
    prompts = ["Hello", "Why?", "Hello"]
    profile = Profile.load().replace(EVERYWHERE).replace({"branch": {"width": 2, "depth": 3}})
    arm = only(profile, BRANCH)
    control = asker.answers("control", prompts, 12, profile=without(profile, *OFF))
    compared = Compared(asker, control, {"Hello": "prose"}, 12)
    ways = compared.answers("arm", arm)
    whole = asker.answers("whole", prompts, 12, profile=arm)
    assert [[s.token for s in way] for way in ways] == [
        [s.token for s in one.steps] for one in whole
    ]
    assert any(step.fork for way in ways for step in way)
    gains = compared.gains(BRANCH, ways)
    assert [(gain.kind, len(gain.logprobs)) for gain in gains] == [("all", 3), ("prose", 2)]
    assert gains[0].cost > 0
    untouched = compared.answers("none", without(profile, *OFF))
    assert untouched == [one.steps for one in control]


def a_spot(number):
    steps = [make_step(n, "x", logprob=-1.0, entropy=number % 7) for n in range(30)]
    return Spot(Answered([1, number], number, steps, "?"), 3, Place.SENTENCE, "")


class ScriptedTrials:
    """Texts that do what a table says, more or less."""

    def __init__(self, table):
        self.table = table
        self.asked = []

    def effects(self, stage, asked):
        found = []
        for spot, text in asked:
            self.asked.append(text)
            shift = 0.01 * (spot.answer.seed % 5 - 2)
            found.append(Effect(self.table[text] + shift, -self.table[text], dropped=False))
        return found

    def again(self, stage, found, seed):
        return list(found)


@pytest.fixture
def asker(monkeypatch):
    monkeypatch.setattr(
        thinking_text, "candidates", lambda *_: ["bad", "good", "fair", "poor", "awful"]
    )
    config = SimpleNamespace(vocab_size=9)
    return an_asker(SimpleNamespace(config=config), None)


@pytest.mark.parametrize(("shift", "harms"), [(0.0, False), (-1.0, True)])
def test_the_best_text_is_kept_and_measured_at_other_places(asker, shift, harms):
    table = {"bad": -0.5, "good": 0.2, "fair": 0.199, "poor": 0.198, "awful": -0.9}
    trials = ScriptedTrials({text: value + shift for text, value in table.items()})
    strict = ScriptedTrials(trials.table)
    choice = choose(asker, trials, strict, [a_spot(number) for number in range(150)])
    first, final = thinking_text.FIRST_SPOTS, thinking_text.FINAL_SPOTS
    places = 150 - 2 * first - final
    assert choice.kept.text == "good"
    assert len(choice.kept.effects) == places * thinking_text.SEEDS
    assert [one.text for one in choice.tried][3:] == ["bad", "awful"]
    assert trials.asked.count("bad") == first, "clearly behind: it is tried no more"
    assert trials.asked.count("poor") == 2 * first + final
    assert choice.harms is harms
    assert set(strict.asked) == {"good"}
    expected = {"text": "good", "least_gain": thinking_text.LEAST_GAIN}
    expected |= {"max_insertions": 0} if harms else {}
    assert choice.changes() == expected
    kept = choice.record()["kept"]
    low, high = kept["total"][1:]
    assert low <= table["good"] + shift <= high
    assert kept["places"] == places
    assert set(kept["by_entropy"]) == {"bits", "below", "above"}


def test_where_no_thought_can_stand_none_is_chosen(asker):
    assert choose(asker, ScriptedTrials({}), ScriptedTrials({}), []) is None


def test_where_no_way_goes_on_long_enough_no_text_is_chosen(asker):
    table = dict.fromkeys(["bad", "good", "fair", "poor", "awful"], 0.1)
    strict = ScriptedTrials(table)
    strict.again = lambda stage, found, seed: []
    found = [a_spot(number) for number in range(150)]
    assert choose(asker, ScriptedTrials(table), strict, found) is None


@pytest.mark.slow
def test_answers_that_were_stopped_go_on(tiny_model, endless, tmp_path):
    path = tmp_path / "x.partial.jsonl"

    def stop(done, total):
        if done == 2:
            raise KeyboardInterrupt

    stopped = an_asker(tiny_model, endless, path=path, tell=stop)
    stopped.progress.begin("subject")
    asked = ["Hello", "Why?", "Hello", "Who?"], 4
    with pytest.raises(KeyboardInterrupt):
        stopped.answers("a", *asked, profile=BARE)
    path.write_bytes(path.read_bytes() + b'["a", 60, [0.')  # cut off
    again = an_asker(tiny_model, endless, path=path, resume=True)
    again.progress.begin("subject")
    whole = an_asker(tiny_model, endless).answers("a", *asked, profile=BARE)
    found = again.answers("a", *asked, profile=BARE)
    assert [[s.token for s in one.steps] for one in found] == [
        [s.token for s in one.steps] for one in whole
    ]
    assert len(path.read_text().splitlines()) == 1 + 4


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
