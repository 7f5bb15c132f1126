"""Many answers at once on a tiny model: each is what it is alone, whatever others do."""

import math
import threading

import mlx.core as mx
import pytest

from entropix_mlx import Settings, batch_generate, stream_generate
from entropix_mlx.answer.hooks import Hooks
from entropix_mlx.engine import passes
from entropix_mlx.errors import (
    ContextLengthError,
    NonFiniteLogitsError,
    ProfileError,
    SettingsError,
)
from entropix_mlx.step import ChosenBy, Origin
from tests.answer.test_forks import always_branch
from tests.chat.test_session import INTERVENING
from tests.oracle.decision_margin import decision_margin, fork_margin
from tests.steps import first_divergence

pytestmark = pytest.mark.slow

ROUNDING = 1e-4
"""Nats: where an answer first differs from the one alone, the decision margin is at most this."""
PROMPTS = [list(text.encode()) for text in ("A", "The quick brown fox", "x = 3;", "lorem " * 12)]
PLAIN = Settings(seed=1, max_tokens=24, changes={"branch": {"max_branches": 0}})


@pytest.fixture
def alone(tiny_model, sentences):
    def alone(prompt, settings, **options):
        return list(stream_generate(tiny_model, sentences, prompt, settings, **options))

    return alone


@pytest.fixture
def together(tiny_model, sentences):
    def together(prompts, settings, **options):
        return batch_generate(tiny_model, sentences, prompts, settings, **options)

    return together


@pytest.fixture
def check_same(tiny_model):
    """Return a check that two answers are alike, up to what rounding may do."""

    def check(prompt, settings, found, expected):
        at = first_divergence(found, expected)
        if at is None:
            assert [kind(step) for step in found] == [kind(step) for step in expected]
            return
        resolved = settings.resolved(tiny_model.config)
        sampler = resolved.sampler
        text = prompt + [step.token for step in expected[:at]]
        cache = tiny_model.make_cache()
        forward = tiny_model(mx.array([text]), cache, settings.attention_layers)
        scores = [layer[0, 0] for layer in forward.scores]
        logits = forward.logits[0, -1]
        margins = [decision_margin(sampler, logits, scores, settings.seed, len(text))]
        branches = [steps[at].fork for steps in (found, expected) if steps[at].fork]
        margins += [fork_margin(fork, sampler.profile.branch) for fork in branches]
        assert min(margins) < ROUNDING, at

    return check


def kind(step):
    branches = step.fork and [branch.tokens for branch in step.fork.branches]
    return step.origin, step.strategy, step.rolled_back, step.finish_reason, branches


def of_every_kind():
    """Return settings that differ in everything that a row may have of its own."""
    return [
        PLAIN,
        Settings(seed=2, profile=INTERVENING, max_tokens=30),
        Settings(seed=3, sampler="greedy", max_tokens=9, top_logprobs=3),
        Settings(seed=4, profile=always_branch(width=3), attention_layers="all", max_tokens=25),
        Settings(seed=5, sampler="min_p", temperature=1.3, max_tokens=40),
        Settings(seed=5, sampler="min_p", temperature=0.7, max_tokens=17, top_logprobs=1),
        Settings(seed=8, attention_layers="all", max_tokens=22),
        Settings(seed=9, sampler="top_n_sigma", max_tokens=20),
        Settings(seed=10, profile=INTERVENING, changes={"branch": {"width": 5}}, max_tokens=30),
        Settings(seed=-4, sampler="xtc", max_tokens=12),
        Settings(seed=12, profile=always_branch(depth=9), stop=("e", "a"), max_tokens=30),
    ]


def test_each_answer_is_the_one_alone(together, alone, check_same):
    settings = of_every_kind()
    prompts = [PROMPTS[number % len(PROMPTS)] for number in range(len(settings))]
    answers = together(prompts, settings, batch=5).finish()
    assert [answer.index for answer in answers] == list(range(len(settings)))
    origins = {step.origin for answer in answers for step in answer.steps}
    assert origins == {Origin.SAMPLED, Origin.INSERTED, Origin.BRANCH}
    for answer, prompt, own in zip(answers, prompts, settings, strict=True):
        assert answer.error is None
        assert answer.seed == own.seed
        expected = alone(prompt, own)
        check_same(prompt, own, answer.steps, expected)
        if first_divergence(answer.steps, expected) is None:
            for step, other in zip(answer.steps, expected, strict=True):
                assert step.entropy == pytest.approx(other.entropy, abs=1e-3)
                assert step.agreement == pytest.approx(other.agreement, abs=1e-3)
                assert len(step.top_logprobs) == own.top_logprobs


def test_steps_come_as_they_are_committed(together):
    reported = []
    batch = together(PROMPTS, PLAIN, batch=4, on_progress=lambda *counts: reported.append(counts))
    seen = [(index, step.index) for index, step in batch]
    assert seen.index((3, 0)) < seen.index((0, 20)), "all of them grow at once"
    assert len(seen) == len(set(seen)) == 4 * 24
    assert [len(answer.steps) for answer in batch.answers] == [24] * 4
    assert reported == [(1, 4), (2, 4), (3, 4), (4, 4)]


def check_others(alone, check_same, answers, touched, settings=PLAIN):
    for answer, prompt in zip(answers, PROMPTS, strict=True):
        if answer.index != touched:
            assert answer.error is None
            check_same(prompt, settings, answer.steps, alone(prompt, settings))


@pytest.mark.parametrize("profile", [None, INTERVENING])
def test_an_answer_whose_row_is_damaged(together, alone, check_same, profile, monkeypatch):
    read = passes.Pass.read

    def damaged(self):
        rows = read(self)
        for number, entry in enumerate(self.entries):
            if entry.sequence.prompt == PROMPTS[2] and entry.sequence.index > 9:
                bad = rows[number][0].metrics._replace(entropy=math.nan)
                rows[number] = [rows[number][0]._replace(metrics=bad)]
        return rows

    settings = PLAIN if profile is None else Settings(seed=2, profile=profile, max_tokens=24)
    with monkeypatch.context() as patched:
        patched.setattr(passes.Pass, "read", damaged)
        answers = together(PROMPTS, settings).finish()
    check_others(alone, check_same, answers, 2, settings)
    assert isinstance(answers[2].error, NonFiniteLogitsError)
    assert 10 <= len(answers[2].steps) < 24


def test_an_answer_that_cannot_begin(together, alone, check_same):
    bad = Settings(seed=1, max_tokens=24, changes={"think": {"text": [999]}})
    batch = together(PROMPTS, [PLAIN, bad, PLAIN, PLAIN])
    answers = batch.finish()
    check_others(alone, check_same, answers, 1)
    assert isinstance(answers[1].error, ProfileError)
    answers = together([*PROMPTS[:3], [65] * 300], PLAIN).finish()
    check_others(alone, check_same, answers, 3)
    assert isinstance(answers[3].error, ContextLengthError)
    assert answers[3].prompt_tokens == 300


def test_a_person_chooses_in_one_answer_of_a_batch(tiny_model, endless):
    asking = Settings(seed=3, max_tokens=24, profile=always_branch(ask_margin=99.0))
    hooks = [
        Hooks(choose=lambda fork: (fork.winner + 1) % len(fork.branches)),
        Hooks(),
        Hooks(choose=lambda fork: 1 / 0),
    ]
    settings = [asking, PLAIN, asking]
    one, other, failed = batch_generate(
        tiny_model, endless, PROMPTS[:3], settings, hooks=hooks
    ).finish()
    assert {step.fork.chosen_by for step in one.steps if step.fork} == {ChosenBy.USER}
    assert len(one.steps) == 24
    assert other.error is None
    assert isinstance(failed.error, ZeroDivisionError)


@pytest.mark.parametrize(
    ("prompts", "options", "error", "named"),
    [
        (PROMPTS, {"settings": [PLAIN]}, TypeError, "settings"),
        (PROMPTS, {"hooks": [None] * 3}, TypeError, "hooks"),
        (PROMPTS, {"sed": 4}, TypeError, "sed"),
        (PROMPTS, {"pipelined": True}, TypeError, "pipelined"),
        (PROMPTS, {"cancel": threading.Event()}, TypeError, "cancel"),
        (PROMPTS, {"n": 0}, SettingsError, "n must"),
        ("one prompt", {}, TypeError, "prompts"),
    ],
)
def test_wrong_arguments_are_named(together, prompts, options, error, named):
    with pytest.raises(error, match=named):
        together(prompts, **({"settings": PLAIN} | options))


def test_a_batch_may_be_empty(together):
    assert together([], PLAIN).finish() == []
