"""Mirostat 2 against the paper's algorithm in float64."""

import mlx.core as mx
import numpy as np
import pytest

from entropix_mlx.profiles.profile import Profile
from entropix_mlx.samplers.draw import uniforms
from entropix_mlx.samplers.position import sample
from entropix_mlx.samplers.registry import make_sampler
from entropix_mlx.samplers.state import TextStart

SCORES = [[mx.zeros((1, 2, 3))]]


@pytest.mark.parametrize(("target", "rate"), [(5.0, 0.1), (2.0, 1.0), (0.5, 0.3)])
def test_what_may_be_drawn_and_how_the_limit_moves(target, rate):
    options = {"samplers": {"mirostat": {"target_surprise": target, "rate": rate}}}
    sampler = make_sampler("mirostat", Profile.load().replace(options))
    memory = sampler.remembered
    (state,) = memory.start(TextStart(vocab=500))
    state, limit = (state,), 2 * target
    rng = np.random.default_rng(3)
    for step in range(60):
        logits = rng.normal(scale=rng.uniform(0.1, 6), size=500).astype(np.float32)
        p = np.exp(logits - logits.max(), dtype=np.float64)
        surprise = -np.log2(p / p.sum())
        allowed = surprise <= limit
        allowed[surprise.argmin()] = True
        randomness = mx.array([uniforms(0, step, 1)])
        queued = sample(sampler, mx.array(logits[None]), SCORES, randomness, 0, state)
        (read,) = queued.read()
        # What min-p keeps of the tempered distribution, at temperature 1.
        kept = p >= read.decision.min_p
        np.testing.assert_array_equal(kept, allowed)
        assert allowed[read.token]
        limit -= rate * (surprise[read.token] - target)
        state = memory.observe(queued.state, queued.token, queued.logprob)
        assert state[0].item() == pytest.approx(limit, abs=1e-3)


def test_surprise_is_held_at_the_target():
    sampler = make_sampler("mirostat")
    state = sampler.remembered.start(TextStart(vocab=500))
    rng = np.random.default_rng(5)
    seen = []
    for step in range(600):
        logits = mx.array(rng.normal(scale=1.8, size=(1, 500)).astype(np.float32))
        randomness = mx.array([uniforms(1, step, 1)])
        queued = sample(sampler, logits, SCORES, randomness, 0, state)
        state = sampler.remembered.observe(queued.state, queued.token, queued.logprob)
        seen.append(queued.logprob.item() / -np.log(2))
    assert np.mean(seen[200:]) == pytest.approx(5.0, abs=0.15)
