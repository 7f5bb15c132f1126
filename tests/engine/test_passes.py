"""Passes: how many an answer takes, which rows share one, and what each leaves in the cache."""

from itertools import accumulate

import mlx.core as mx
import numpy as np
import pytest

from entropix_mlx import Settings
from entropix_mlx.answer.hooks import Hooks
from entropix_mlx.engine import forward
from entropix_mlx.engine.cached_text import CachedText
from entropix_mlx.engine.forward import Engine
from entropix_mlx.engine.runner import Runner
from entropix_mlx.step import Origin, Passage, Source
from tests.conftest import PROMPT


@pytest.fixture
def runner(tiny_model, endless):
    return Runner(tiny_model, endless, batch=4)


@pytest.fixture
def calls(monkeypatch):
    """Count the passes, and the parts of passes that are measured and drawn apart."""
    counts = {"passes": 0, "parts": 0}

    def counted(name, function):
        def call(*arguments, **options):
            counts[name] += 1
            return function(*arguments, **options)

        return call

    monkeypatch.setattr(Engine, "queue", counted("passes", Engine.queue))
    monkeypatch.setattr(forward, "sample", counted("parts", forward.sample))
    return counts


def test_an_answer_takes_a_pass_a_token(runner, calls):
    settings = Settings(20, "min_p", seed=1, speculation="off")
    assert len(list(runner.stream(runner.add(PROMPT, runner.resolve(settings))))) == 20
    assert calls == {"passes": 20, "parts": 20}


def test_rows_of_one_kind_are_measured_together_in_whatever_order_they_came(runner, calls):
    for seed, sampler in enumerate(["min_p", "greedy", "min_p", "greedy"]):
        settings = Settings(8, sampler, seed=seed, speculation="off")
        runner.add(PROMPT[seed:], runner.resolve(settings))
    while not runner.idle:
        runner.advance()
    assert calls == {"passes": 8, "parts": 16}


@pytest.mark.parametrize("draft", [0, 6])
@pytest.mark.parametrize("pipelined", [True, False])
def test_the_model_goes_on_from_a_passage(tiny_model, sentences, draft, pipelined):
    """What was queued ahead of the passage has left the cache."""
    notes = {"min_entropy": 0.5, "wait": 99, "draft": draft, "min_gap": 1}
    settings = Settings(40, seed=1, speculation="off", changes={"notes": notes})
    hooks = Hooks(retrieve=lambda _: [Passage("so it is", Source("a.md", n), 1.0) for n in (1, 2)])
    runner = Runner(tiny_model, sentences, pipelined=pipelined)
    text = CachedText.empty(tiny_model)
    slot = runner.add(PROMPT, runner.resolve(settings), hooks, text=text)
    steps = list(runner.stream(slot))
    assert {Origin.SAMPLED, Origin.RETRIEVED} == {step.origin for step in steps}
    whole = PROMPT + [step.token for step in steps]
    logits = tiny_model(mx.array([whole])).logits[0]
    logprobs = np.array(logits - mx.logsumexp(logits, axis=-1, keepdims=True))
    places = range(len(PROMPT) - 1, len(whole) - 1)
    expected = [logprobs[at, step.token] for at, step in zip(places, steps, strict=True)]
    assert [step.logprob for step in steps] == pytest.approx(expected, abs=2e-3)
    assert text.ids == whole[:-1]
    assert {layer.offset for layer in text.layers} == {len(whole) - 1}


@pytest.mark.parametrize("answered", [0, 4])
@pytest.mark.parametrize("inside", [0, 1])
def test_the_cache_ends_before_a_stop_string(tiny_model, endless, runner, inside, answered):
    settings = Settings(40, "min_p", seed=4)
    whole = list(runner.stream(runner.add(PROMPT, runner.resolve(settings))))
    shown = "".join(step.text for step in whole)
    own = "".join(step.text for step in whole[answered:])
    start = len("".join(step.text for step in whole[answered : answered + 5])) + inside
    stop = own[start : start + 7]
    resolved = Settings(40, "min_p", seed=4, stop=("never in it", stop)).resolved(tiny_model.config)
    text, before = CachedText.empty(tiny_model), whole[:answered]
    prompt = PROMPT + [step.token for step in before]
    steps = list(runner.stream(runner.add(prompt, resolved, answered=before, text=text)))
    assert steps[-1].finish_reason == "stop"
    written = "".join(step.text for step in [*before, *steps])
    assert written == shown[: len(shown) - len(own) + own.index(stop)]
    ends = list(accumulate(len(step.text) for step in whole))
    complete = sum(end <= len(written) for end in ends)
    assert text.ids == PROMPT + [step.token for step in whole[:complete]]
