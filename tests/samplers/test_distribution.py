"""What a token was drawn from is what the sampler draws from, and each step's share is named."""

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from entropix_mlx import Session, Settings
from entropix_mlx.errors import SessionError
from entropix_mlx.samplers.base import Plan
from entropix_mlx.samplers.distribution import distribution, plan_of
from entropix_mlx.samplers.draw import draw, uniforms
from entropix_mlx.samplers.metrics import Measured
from entropix_mlx.samplers.position import sample
from entropix_mlx.samplers.registry import make_sampler
from entropix_mlx.step import Strategy
from tests.conftest import make_byte_tokenizer, make_tiny_model
from tests.oracle.samplers import at, some_logits

DRAWS = 20_000
CASES = {
    "top-p": {"temperature": 0.8, "top_p": 0.7},
    "top-k": {"top_k": 5},
    "min-p": {"min_p": 0.05, "temperature": 1.3},
    "all": {"temperature": 0.9, "top_k": 20, "top_p": 0.9, "min_p": 0.02},
    "penalty": {"logit_bias": {3: 4.0, 5: -100.0}, "top_k": 10},
}


def drawn_shares(sampler, queued):
    """Return how often each token is drawn, for uniforms that lie evenly."""
    grid = ((np.arange(DRAWS) + 0.5) / DRAWS).astype(np.float32)
    gaps, plan = queued.drawn_from, queued.plan(0)
    counts = np.zeros(gaps.shape[-1])
    for first in range(0, DRAWS, 1000):
        part = grid[first : first + 1000]
        many = mx.repeat(gaps, len(part), axis=0)
        measured = Measured(mx.zeros((len(part), 8)), many, mx.zeros((len(part), 1)), many)
        many = Plan(*(mx.repeat(field, len(part)) for field in plan.parameters))
        uniform = mx.array(np.stack([part, np.full_like(part, 0.5)], -1))[:, None]
        token, _ = draw(measured, many, sampler.drawing._replace(draws=1), uniform)
        counts += np.bincount(np.array(token[:, 0]), minlength=len(counts))
    return counts / DRAWS


def queued_with(sampler, logits):
    """Return a queued position, with the changes of its logits that a sampler asks for."""
    changed = sampler.penalties
    adjusted = None if changed is None else changed(mx.array(logits[None]), mx.array([0]), 0)
    randomness = mx.array([uniforms(0, 0, sampler.draws)])
    return sample(sampler, mx.array(logits[None]), None, randomness, changed=adjusted)


@pytest.mark.parametrize("given", [CASES[n] for n in ("top-p", "top-k", "all")], ids=str)
def test_the_draw_has_these_probabilities(given):
    rng = np.random.default_rng(1)
    sampler = make_sampler("temperature", given=given)
    queued = at(sampler, some_logits(rng))
    found = distribution(queued, 0, queued.plan(0), 300)
    shares = drawn_shares(sampler, queued)
    for candidate in found.candidates:
        assert shares[candidate.token] == pytest.approx(candidate.drawn, abs=2 / DRAWS)


@pytest.mark.parametrize("given", CASES.values(), ids=CASES)
@pytest.mark.parametrize("seed", range(3))
def test_probabilities_are_those_of_the_formulas(given, seed):
    logits = some_logits(np.random.default_rng(seed)).astype(np.float64)
    sampler = make_sampler("temperature", given=given)
    queued = queued_with(sampler, logits.astype(np.float32))
    found = distribution(queued, 0, queued.plan(0), 300)
    z = logits.astype(np.float32).astype(np.float64)
    model = np.exp(z - z.max()) / np.exp(z - z.max()).sum()
    for token, bias in given.get("logit_bias", {}).items():
        z[token] += bias
    weights = np.exp((z - z.max()) / given.get("temperature", 1.0))
    order = np.argsort(-weights, kind="stable")
    rank = np.argsort(order)
    before = np.cumsum(weights[order])[rank] - weights
    kept = weights >= given.get("min_p", 0.0)
    kept &= rank < given.get("top_k", 300)
    kept &= before < given.get("top_p", 1.0) * weights.sum()
    drawn = np.where(kept, weights, 0) / weights[kept].sum()
    for c in found.candidates:
        assert c.model == pytest.approx(model[c.token], abs=1e-6)
        assert c.drawn == pytest.approx(drawn[c.token], abs=1e-6)
        assert bool(c.removed_by) is not bool(kept[c.token])
    lost = 1 - (np.where(kept, weights, 0) / weights.sum()).sum()
    assert sum(found.removed.values()) == pytest.approx(lost, abs=1e-6)


def test_the_best_of_several_draws_and_the_most_probable_token():
    sampler = make_sampler("entropix")
    queued = at(sampler, some_logits(np.random.default_rng(2)))
    draws = sampler.drawing.draws
    one = plan_of(Strategy.RESAMPLE, 1.0, 1.0, 40, 0.0)
    best = plan_of(Strategy.ADAPTIVE, 1.0, 1.0, 40, 0.0)
    single, several = (
        [c.drawn for c in distribution(queued, 0, plan, 40).candidates] for plan in (one, best)
    )
    assert sum(several) == pytest.approx(1)
    assert several[0] == pytest.approx(1 - (1 - single[0]) ** draws)
    for strategy in (Strategy.ARGMAX, Strategy.BRANCH):  # a fork that is not followed
        sure = distribution(queued, 0, plan_of(strategy, 1.0, 1.0, 40, 0.0), 3)
        assert [c.drawn for c in sure.candidates] == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("sampler", ["top_p", "entropix", "min_p"])
def test_a_session_says_what_a_step_was_drawn_from(sampler):
    model, tokenizer = make_tiny_model(max_position_embeddings=4096), make_byte_tokenizer()
    settings = Settings(12, sampler, seed=3, top_logprobs=4)
    session = Session(model, tokenizer, settings)
    steps = list(session.send("Hello"))
    for step in steps[::4]:
        found = session.distribution(step.index)
        drawn = {c.token: c for c in found.candidates}
        assert step.token in drawn
        for alternative in step.top_logprobs:
            model_share = drawn[alternative.token].model
            assert model_share == pytest.approx(np.exp(alternative.logprob), abs=1e-5)
        if step.origin == "sampled":
            assert drawn[step.token].drawn > 0
    with pytest.raises(SessionError):
        session.distribution(99)
    session.settings = replace(settings, top_logprobs=2)
    assert len(session.distribution(0).candidates) in (2, 3)


def test_a_constraint_takes_away_what_it_does_not_allow():
    model, tokenizer = make_tiny_model(max_position_embeddings=4096), make_byte_tokenizer()
    settings = Settings(
        3, "temperature", seed=3, top_logprobs=300, constraint={"regex": "[a-c]{3}"}
    )
    session = Session(model, tokenizer, settings)
    list(session.send("Hello"))
    found = session.distribution(1)
    allowed = {tokenizer.encode(letter)[0] for letter in "abc"}
    assert {c.token for c in found.candidates if not c.removed_by} == allowed
    assert sum(c.drawn for c in found.candidates) == pytest.approx(1)
    assert "constraint" in {c.removed_by for c in found.candidates}
