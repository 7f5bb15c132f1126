"""Samplers with a memory: what they remember is that of the text, however it came to be."""

from dataclasses import replace

import mlx.core as mx
import pytest

from entropix_mlx import Session, stream_generate
from entropix_mlx.api.batch import batch_generate
from entropix_mlx.profiles.profile import Profile
from entropix_mlx.samplers.base import CODE, as_planned
from entropix_mlx.settings import Settings
from entropix_mlx.step import Origin, Strategy
from tests.conftest import PROMPT, run_answer, tokens

PENALTIES = {
    "repetition_penalty": 1.2,
    "presence_penalty": 0.3,
    "frequency_penalty": 0.4,
    "dry_multiplier": 0.8,
    "dry_allowed_length": 1,
    "logit_bias": {65: 3.0},
}
WITH_MEMORY = [
    {"sampler": "mirostat", **PENALTIES},
    {"sampler": "entropix", **PENALTIES},
    {"sampler": "adaptive_p", "min_p": 0.05},
    {"sampler": "dslider", "repetition_penalty": 1.2},
]
NOTES = ("dslider",)
"""Samplers that note what they measure, which no step records."""
every_memory = pytest.mark.parametrize(
    "kind",
    [
        pytest.param(
            kind, id=kind["sampler"], marks=[pytest.mark.slow] * (kind is not WITH_MEMORY[0])
        )
        for kind in WITH_MEMORY
    ],
)
FORKS = {
    "think": {"min_gap": 3, "watch": 3, "loop_length": 0, "place": "word"},
    "branch": {"max_branches": 8, "min_gap": 2, "depth": 6, "margin": 0.0},
}


def intervening(model, kind, seed=1, **options):
    """Return settings whose sampler thinks and forks by the measurements."""
    changes = {name: options.pop(name, {}) for name in ("think", "branch")}
    profile = Profile.load().replace(FORKS).replace(changes)
    settings = Settings(seed=seed, profile=profile, **kind, **options)
    resolved = settings.resolved(model.config)
    sampler = resolved.sampler

    def rule(measured, numbers, *state):
        planned = as_planned(sampler.rule(measured, numbers, *state))
        margin = measured.metrics.margin
        strategy = mx.where(margin < 0.01, CODE[Strategy.BRANCH], planned.plan.strategy)
        strategy = mx.where(margin > 0.015, CODE[Strategy.THINK], strategy)
        changed = planned.plan._replace(strategy=strategy.astype(mx.float32))
        return planned._replace(plan=changed)

    return replace(resolved, sampler=replace(sampler, rule=rule))


@pytest.fixture
def live(tiny_model, endless):
    """Run a sampler that thinks and forks."""

    def live(kind, pipelined=True, max_tokens=28, **options):
        resolved = intervening(tiny_model, kind, max_tokens=max_tokens, **options)
        return run_answer(tiny_model, endless, PROMPT, resolved, pipelined=pipelined)

    return live


@pytest.fixture
def run(tiny_model, endless):
    def run(max_tokens=40, prompt=PROMPT, **options):
        options.setdefault("seed", 1)
        return list(stream_generate(tiny_model, endless, prompt, max_tokens=max_tokens, **options))

    return run


def decided(steps):
    return [(s.token, s.strategy, s.origin, s.min_p, s.temperature, s.fork) for s in steps]


@every_memory
def test_pipelining_does_not_change_the_steps_and_a_seed_does(live, kind):
    steps = live(kind)
    assert {Origin.SAMPLED, Origin.INSERTED, Origin.BRANCH} <= {step.origin for step in steps}
    assert decided(steps) == decided(live(kind, pipelined=False)) != decided(live(kind, seed=2))


@every_memory
def test_a_thought_that_is_dropped_is_not_remembered(live, kind):
    none = {"max_branches": 0}  # a fork that is due where a thought is dropped is passed over
    steps = live(kind, think={"least_gain": 99.0}, branch=none)
    assert any(step.dropped for step in steps)
    never = live(kind, think={"max_insertions": 0}, branch=none)
    facts = [[(s.token, s.strategy, s.origin) for s in one] for one in (steps, never)]
    assert facts[0] == facts[1]
    assert [s.min_p for s in steps] == pytest.approx([s.min_p for s in never], rel=1e-3)


@every_memory
def test_a_text_is_remembered_as_it_is(live, kind, tiny_model, endless):
    """The plans of an answer with interventions are those of a run that is forced to write it."""
    steps = live(kind, max_tokens=40)
    resolved = intervening(tiny_model, kind, max_tokens=40)
    again = run_answer(tiny_model, endless, PROMPT, resolved, forced=tokens(steps))
    assert tokens(again) == tokens(steps)
    assert [s.min_p for s in again] == pytest.approx([s.min_p for s in steps], rel=1e-3)
    assert [s.temperature for s in again] == pytest.approx([s.temperature for s in steps], rel=1e-3)


@every_memory
def test_in_a_batch_as_alone(tiny_model, endless, kind):
    prompts = [PROMPT, PROMPT[:7], PROMPT[3:15]]
    settings = [Settings(max_tokens=16, seed=seed, **kind) for seed in range(3)]
    batch = batch_generate(tiny_model, endless, prompts, settings)
    for prompt, own, answer in zip(prompts, settings, batch.finish(), strict=True):
        alone = stream_generate(tiny_model, endless, prompt, own)
        assert tokens(answer.steps) == tokens(alone)


@every_memory
def test_a_fork_of_a_session_goes_on_with_what_was_remembered(tiny_model, endless, kind):
    """Where the user puts the same token there, the same answer follows."""
    session = Session(tiny_model, endless, Settings(max_tokens=24, seed=3, **kind))
    first = list(session.send("Hello"))
    again = list(session.fork(10, first[10].token))
    if kind["sampler"] in NOTES:
        assert again[0].token == first[10].token
        return
    assert tokens(again)[:10] == tokens(first)[10:20]
    assert [s.min_p for s in again][:10] == pytest.approx([s.min_p for s in first][10:20], rel=1e-3)


def test_a_bias_bans_and_forces_tokens(run):
    assert set(tokens(run(10, logit_bias={65: 1000.0}))) == {65}
    drawn = set(tokens(run(30, sampler="temperature")))
    banned = dict.fromkeys(drawn, -1000.0)
    assert not drawn & set(tokens(run(30, sampler="temperature", logit_bias=banned)))
