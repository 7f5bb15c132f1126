"""Calibrating thoughts: what a text does at a place, which one is chosen, going on after a stop."""

import dataclasses
import json
import math
from types import SimpleNamespace

import pytest

from entropix_mlx import Profile, stream_generate
from entropix_mlx.answer.interventions.prose import Place
from entropix_mlx.answer.position import Stretch, gain
from entropix_mlx.errors import OutputError
from entropix_mlx.lab.answering import Answered, Answerer, Journal
from entropix_mlx.lab.calibration import thoughts
from entropix_mlx.lab.calibration.ablation import (
    BRANCH,
    OFF,
    Ablation,
    AblationEffect,
    only,
    without,
    without_rejected,
)
from entropix_mlx.lab.calibration.calibrate import TRIED
from entropix_mlx.lab.calibration.thoughts import (
    FOLLOWING,
    LEAST_FOLLOWING,
    InsertionEffect,
    InsertionExperiment,
    InsertionSite,
    choose,
    reserved_tokens,
    sites,
)
from tests.conftest import make_byte_tokenizer, tokens
from tests.fuzz.mutations import VALUES
from tests.steps import make_step

BARE = without(Profile.load(), *OFF)
EVERYWHERE = {"thresholds": {"branch_max_entropy": 99.0, "branch_min_varentropy": 0.0}}


@pytest.fixture
def endless(sentences):
    return sentences


def an_answerer(model, tokenizer, journal=None):
    return Answerer(model, tokenizer, 3, journal or Journal())


def after(model, tokenizer, site, text, profile, tokens):
    """Generate what follows a text at a site, as one answer without any journal or batch."""
    prompt = [*site.before, *tokenizer.encode(text)]
    options = {"profile": profile, "seed": 3, "max_tokens": tokens, "speculation": "off"}
    return list(stream_generate(model, tokenizer, prompt, **options))


@pytest.mark.slow
def test_an_effect_is_the_difference_to_the_same_answer(tiny_model, endless):
    answerer = an_answerer(tiny_model, endless)
    (answer,) = answerer.answers("control", ["Hello"], 30, profile=BARE)
    found = list(sites(endless, answer, BARE.think))
    assert 0 <= 30 - LEAST_FOLLOWING - max(site.number for site in found) <= 2
    site = found[1]
    assert site.control == answer.steps[site.number :]
    control = Stretch.of(site.control[:FOLLOWING])
    experiment = InsertionExperiment(answerer, BARE)
    planned = [(site, " Hm."), (site, 7), (found[2], " Hm.")]
    effect, *others = experiment.effects("tried", planned)
    treated = Stretch.of(after(tiny_model, endless, site, " Hm.", BARE, FOLLOWING))
    assert not effect.dropped
    assert effect.logprob == pytest.approx(treated.logprob - control.logprob, abs=1e-4)
    assert effect.entropy == pytest.approx(treated.entropy - control.entropy, abs=1e-4)
    assert len(others) == 2
    (again,) = experiment.reseeded("again", [site], seed=50)
    assert again.before == site.before
    assert tokens(again.control) != tokens(site.control)
    (same,) = experiment.reseeded("the same", [site], seed=3)
    assert tokens(same.control) == tokens(site.control)[:FOLLOWING]
    (letter,) = answerer.answers("letter", ["Write a letter"], 30, profile=BARE)
    assert not list(sites(endless, letter, BARE.think)), "no thought stands in a letter"


@pytest.mark.slow
def test_where_a_text_must_improve_its_effect_is_measured_behind_what_decides(tiny_model, endless):
    answerer = an_answerer(tiny_model, endless)
    (answer,) = answerer.answers("control", ["Hello"], 60, profile=BARE)
    found = [site for site in sites(endless, answer, BARE.think) if site.number < 20]
    watch = 6
    free = BARE.replace({"think": {"watch": watch, "loop_length": 0}})
    effects = {}
    for name, least in (("free", -math.inf), ("strict", 0.0), ("never", 99.0)):
        experiment = InsertionExperiment(answerer, free.replace({"think": {"least_gain": least}}))
        effects[name] = experiment.effects(name, [(site, " Hm.") for site in found])
    assert not any(effect.dropped for effect in effects["free"])
    assert all(effect.dropped for effect in effects["never"])
    assert len({effect.dropped for effect in effects["strict"]}) == 2
    for site, effect in zip(found, effects["strict"], strict=True):
        treated = after(tiny_model, endless, site, " Hm.", free, watch + FOLLOWING)
        control = site.control[: watch + FOLLOWING]
        assert effect.dropped == (gain(treated[:watch], control[:watch]) < 0)
        behind = gain(treated[watch:], control[watch:])
        assert effect.dropped or effect.total == pytest.approx(behind, abs=1e-4)


@pytest.mark.slow
def test_an_arm_is_the_whole_answer_although_it_goes_on_from_the_control(tiny_model, endless):
    answerer = an_answerer(tiny_model, endless)
    prompts = ["Hello", "Why?", "Hello"]
    forks = {"max_branches": 8, "width": 2, "depth": 3}
    profile = Profile.load().replace(EVERYWHERE).replace({"branch": forks})
    arm = only(profile, BRANCH)
    control = answerer.answers("control", prompts, 12, profile=without(profile, *OFF))
    ablation = Ablation(answerer, control, {"Hello": "prose"}, 12)
    treated = ablation.answers("arm", arm)
    whole = answerer.answers("whole", prompts, 12, profile=arm)
    assert list(map(tokens, treated)) == [tokens(one.steps) for one in whole]
    assert any(step.fork for steps in treated for step in steps)
    effects = ablation.effects(BRANCH, treated)
    assert [(effect.kind, len(effect.logprobs)) for effect in effects] == [("all", 3), ("prose", 2)]
    assert effects[0].cost > 0
    untouched = ablation.answers("none", without(profile, *OFF))
    assert untouched == [one.steps for one in control]


def a_site(number):
    steps = [make_step(n, "x", logprob=-1.0, entropy=number % 7) for n in range(30)]
    answer = Answered([1, number], number, steps, "?")
    return InsertionSite(answer, 3, Place.SENTENCE, "")


class Scripted:
    """An experiment in which texts do what a table says, more or less."""

    def __init__(self, table):
        self.table = table
        self.texts = []

    def effects(self, stage, planned):
        self.texts += [text for _, text in planned]
        return [
            InsertionEffect(
                self.table[text] + 0.01 * (site.answer.seed % 5 - 2), -self.table[text], False
            )
            for site, text in planned
        ]

    def reseeded(self, stage, found, seed):
        return list(found)


@pytest.fixture
def answerer(monkeypatch):
    texts = ["bad", "good", "fair", "poor", "awful"]
    monkeypatch.setattr(thoughts, "candidates", lambda *_: texts)
    return an_answerer(SimpleNamespace(config=SimpleNamespace(vocab_size=9)), None)


@pytest.mark.parametrize(("shift", "harms"), [(0.0, False), (-1.0, True)])
def test_the_best_text_is_chosen_and_measured_at_other_places(answerer, shift, harms):
    table = {"bad": -0.5, "good": 0.2, "fair": 0.199, "poor": 0.198, "awful": -0.9}
    anywhere = Scripted({text: value + shift for text, value in table.items()})
    improving = Scripted(anywhere.table)
    choice = choose(answerer, anywhere, improving, [a_site(number) for number in range(150)])
    first, final = thoughts.FIRST_SITES, thoughts.FINAL_SITES
    places = 150 - 2 * first - final
    assert choice.chosen.text == "good"
    assert len(choice.chosen.effects) == places * thoughts.SEEDS
    assert [one.text for one in choice.candidates][3:] == ["bad", "awful"]
    assert anywhere.texts.count("bad") == first, "clearly behind: it is tried no more"
    assert anywhere.texts.count("poor") == 2 * first + final
    assert choice.harms is harms
    assert improving.texts[:3] == ["good", "fair", "poor"], "none is clearly behind: in turn"
    expected = {"text": ["good", "fair", "poor"], "least_gain": thoughts.LEAST_GAIN}
    expected |= {"max_insertions": 0} if harms else {}
    assert choice.changes() == expected
    record = choice.record()["chosen"]
    low, high = record["total"][1:]
    assert low <= table["fair"] + shift <= high
    assert record["places"] == places


def test_without_places_no_text_is_chosen(answerer):
    table = dict.fromkeys(["bad", "good", "fair", "poor", "awful"], 0.1)
    improving = Scripted(table)
    assert choose(answerer, Scripted(table), improving, []) is None
    improving.reseeded = lambda stage, found, seed: []  # no answer is long enough
    assert choose(answerer, Scripted(table), improving, list(map(a_site, range(150)))) is None


@pytest.mark.slow
def test_answers_that_were_stopped_go_on(tiny_model, endless, tmp_path):
    path = tmp_path / "x.partial.jsonl"

    def stop(done, total):
        if done == 2:
            raise KeyboardInterrupt

    stopped = an_answerer(tiny_model, endless, Journal(path, on_progress=stop))
    stopped.journal.open("subject")
    asked = ["Hello", "Why?", "Hello", "Who?"], 4
    with pytest.raises(KeyboardInterrupt):
        stopped.answers("a", *asked, profile=BARE)
    path.write_bytes(path.read_bytes() + b'["a", 60, [0.')  # cut off
    again = an_answerer(tiny_model, endless, Journal(path, resume=True))
    again.journal.open("subject")
    whole = an_answerer(tiny_model, endless).answers("a", *asked, profile=BARE)
    found = again.answers("a", *asked, profile=BARE)
    assert [tokens(one.steps) for one in found] == [tokens(one.steps) for one in whole]
    assert len(path.read_text().splitlines()) == 1 + 4


def test_a_journal_of_something_else_is_refused(tmp_path):
    path = tmp_path / "findings"

    def opened(seed, resume=True):
        journal = Journal(path, resume=resume)
        journal.open({"seed": seed})
        return journal

    steps = [make_step(0, "a")]
    opened(1).add("a", 0, steps)
    assert opened(1).get("a", 0) == steps
    with pytest.raises(OutputError, match="--resume"):
        opened(2)
    record = steps[0].to_dict()
    wrong = [*VALUES, *([value] for value in VALUES if value != {}), [record | {"token": "x"}]]
    wrong = [steps for steps in wrong if steps not in ([], "", {})]
    lines = [json.dumps(["a", 0, steps]) for steps in wrong]
    for damaged in ("[[", *(f'{{"seed": 1}}\n{line}' for line in ("7", "[[], {}, []]", *lines))):
        path.write_text(damaged + "\n")
        with pytest.raises(OutputError, match="damaged"):
            opened(1)
    journal = opened(2, resume=False)
    assert journal.get("a", 0) is None, "begun anew"
    journal.remove()
    assert not path.exists()


def test_what_does_harm_is_left_out():
    good, bad, unclear = (0.1, 0.2) * 20, (-0.2, -0.1) * 20, (-0.2, 0.3) * 20
    found = [
        AblationEffect("think", "all", unclear, unclear, 0.1),
        AblationEffect("branch", "all", bad, bad, 1.0),
        AblationEffect("resample", "code", bad, bad, 0.0),
    ]
    tried = Profile.load().replace({"branch": TRIED})
    profile = without_rejected(tried, found)
    assert profile.branch.max_branches == 0
    assert profile.think == tried.think
    assert profile.thresholds == tried.thresholds, "harmful to one kind only"
    assert found[1].to_dict()["logprob_per_forward_token"] == -0.15
    forks, hot = (AblationEffect(name, "all", unclear, unclear, 1.0) for name in ("branch", "hot"))
    assert without_rejected(tried, [forks, hot]) == without(tried, "branch", "hot"), "no gain"
    assert without_rejected(tried, [dataclasses.replace(forks, logprobs=good)]) == tried


def test_reserved_are_added_tokens_that_nothing_uses():
    tokenizer = make_byte_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<pause>", "user"]})
    tokenizer.chat_template = "{% for m in messages %}<s>user {{ m['content'] }}{% endfor %}"
    assert reserved_tokens(tokenizer, 262) == [258, 260, 261], "two rows belong to no token"
    assert reserved_tokens(tokenizer, 258) == [], "the tokenizer knows more than the model"
