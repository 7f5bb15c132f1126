"""Forks on a tiny model: what is followed, what wins, and what it leaves in the cache."""

import math
from threading import Event
from types import SimpleNamespace

import mlx.core as mx
import numpy as np
import pytest

from entropix_mlx import Settings, stream_generate
from entropix_mlx.answer import writer
from entropix_mlx.answer.forks import leads
from entropix_mlx.answer.hooks import Hooks
from entropix_mlx.api.runner import Runner
from entropix_mlx.profiles.profile import Profile
from entropix_mlx.step import Origin
from tests.conftest import PROMPT

EVERYWHERE = {
    "thresholds": {
        "low_entropy": -1,
        "think_max_varentropy": -1,
        "branch_max_entropy": 99,
        "branch_min_varentropy": -1,
    }
}


def always_branch(**fork):
    fields = {"min_gap": 0, "margin": 0.0, "depth": 6, "max_branches": 100} | fork
    return Profile.load().replace(EVERYWHERE | {"branch": fields})


@pytest.fixture
def run(tiny_model, byte_tokenizer, monkeypatch):
    monkeypatch.setattr(byte_tokenizer, "_eos_token_ids", set())

    def run(max_tokens=40, model=tiny_model, hooks=None, **options):
        options = {"max_tokens": max_tokens, "seed": 1, "profile": always_branch()} | options
        return list(stream_generate(model, byte_tokenizer, PROMPT, hooks=hooks, **options))

    return run


def records(steps):
    return [step.fork for step in steps if step.fork]


def logprobs(model, tokens):
    """Float64 log probabilities after each token, and the entropies in bits."""
    rows = np.array(model(mx.array([tokens]), model.make_cache()).logits[0], np.float64)
    rows -= rows.max(axis=-1, keepdims=True)
    rows -= np.log(np.exp(rows).sum(axis=-1, keepdims=True))
    return rows, -(np.exp(rows) * rows).sum(axis=-1) / math.log(2)


def test_leads_are_those_of_the_definition(run, tiny_model):
    steps = run(30)
    text = list(PROMPT)
    checked = 0
    for step in steps:
        found = []
        for branch in step.fork.branches if step.fork else ():
            rows, entropies = logprobs(tiny_model, text + list(branch.tokens))
            at = range(len(text) - 1, len(text) + len(branch.tokens) - 1)
            found.append(np.array([rows[i, t] for i, t in zip(at, branch.tokens, strict=True)]))
            entropy = np.mean([entropies[i] for i in at])
            assert branch.mean_logprob == pytest.approx(found[-1].mean(), abs=1e-3)
            assert branch.mean_entropy == pytest.approx(entropy, abs=1e-3)
            common = min(len(found[0]), len(found[-1]))
            assert branch.lead == pytest.approx(
                (found[-1][:common] - found[0][:common]).mean(), abs=1e-3
            )
            checked += 1
        if step.fork:
            best = np.argmax(logprobs(tiny_model, text)[0][-1])
            assert step.fork.branches[0].tokens[0] == best
        text.append(step.token)
    assert checked >= 15


def test_the_best_lead_wins_unless_the_margin_forbids_it(run):
    forks = records(run(30))
    assert len({fork.winner for fork in forks}) > 1
    for fork in forks:
        assert fork.winner == np.argmax([branch.lead for branch in fork.branches])
    assert all(b.winner == 0 for b in records(run(20, profile=always_branch(margin=1e6))))


def test_a_branch_is_what_would_have_been_generated(run, tiny_model, byte_tokenizer):
    """Common random numbers: the randomness of a position is the same in all branches."""
    step = run(12)[0]
    for branch in step.fork.branches:
        settings = Settings(
            profile=always_branch(max_branches=0), seed=1, max_tokens=len(branch.tokens)
        )
        runner = Runner(tiny_model, byte_tokenizer)
        resolved = settings.resolved(tiny_model.config)
        again = runner.stream(runner.add(PROMPT, resolved, forced=branch.tokens[:1]))
        assert tuple(s.token for s in again) == branch.tokens


def test_a_branch_may_end_the_text(run, byte_tokenizer):
    profile = always_branch(margin=1e6)  # the first wins, whatever the others are
    freely = run(40, profile=profile)
    end = next(s.token for s in freely if s.origin is Origin.BRANCH and not s.fork)
    byte_tokenizer._eos_token_ids = {end}
    steps = run(40, profile=profile)
    assert steps[-1].finish_reason == "stop"
    assert steps[-1].origin is Origin.BRANCH
    assert all(end not in branch.tokens[:-1] for b in records(steps) for branch in b.branches)


def test_a_cancel_stops_branches(run):
    cancel = Event()

    def watch(index, fork):
        if max(len(branch.tokens) for branch in fork.branches) == 3:
            cancel.set()

    assert run(hooks=Hooks(cancel, on_fork=watch), profile=always_branch(depth=16)) == []


def test_what_a_user_takes_to_choose_is_no_time_of_the_model(run, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(writer, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def slow(fork):
        now[0] += 60
        return 0

    steps = run(12, hooks=Hooks(choose=slow), profile=always_branch(ask_margin=1e6))
    assert records(steps)
    assert {step.time for step in steps} == {0.0}


def test_nobody_is_asked_after_a_cancel_or_about_a_clear_lead(run):
    cancel = Event()

    def never(fork):
        raise AssertionError("asked")

    def stop(done, total):
        if done == total:
            cancel.set()

    run(hooks=Hooks(cancel, stop, never), profile=always_branch(ask_margin=1e6))
    assert records(run(hooks=Hooks(choose=never), profile=always_branch(ask_margin=0.0)))


@pytest.mark.parametrize("answer", [-1, 5])
def test_a_choice_that_is_none_is_an_error(run, answer):
    with pytest.raises(ValueError, match="choose"):
        run(hooks=Hooks(choose=lambda fork: answer), profile=always_branch(ask_margin=1e6))


def test_a_lead_has_the_error_of_a_paired_mean():
    first, second, third = [-1.0, -2.0, -3.0, -1.0], [-1.5, -1.0, -2.0, -1.5], [-3.0, -1.0]
    compared = [np.subtract(branch, first[: len(branch)]) for branch in (second, third)]
    variance = sum(((d - d.mean()) ** 2).sum() for d in compared) / sum(
        len(d) - 1 for d in compared
    )
    for lead, differences in zip(leads([first, second, third])[1:], compared, strict=True):
        assert lead.nats == pytest.approx(differences.mean())
        assert lead.error == pytest.approx(np.sqrt(variance / len(differences)))
