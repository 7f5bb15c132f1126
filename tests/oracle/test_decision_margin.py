"""The slack: no smaller change changes what is drawn, by the product's own arithmetic."""

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from entropix_mlx.answer.interventions.comparison import Way, leads
from entropix_mlx.profiles.profile import Profile
from entropix_mlx.samplers.draw import uniforms
from entropix_mlx.samplers.position import sample
from entropix_mlx.samplers.registry import make_sampler
from entropix_mlx.step import Branch, Fork
from tests.oracle.decision_margin import LARGEST, fork_slack, slack

ROUNDING = 1e-4
EXCLUDING = Profile.load().replace({"resample": {"excludes_top": True}})
SAMPLERS = {
    "entropix": make_sampler(),
    "excluding": make_sampler("entropix", EXCLUDING),
    "greedy": make_sampler("greedy"),
    "cntp": make_sampler("cntp"),
    "top_p": make_sampler("top_p", given={"top_p": 0.8}),
    "top_k": make_sampler("temperature", given={"temperature": 0.9, "top_k": 20}),
    "min_p": make_sampler("min_p", given={"temperature": 1.3, "min_p": 0.1}),
}


def outcomes(sampler, logits, scores, seed, at):
    """Return strategy and token of each row, as the device decides."""
    randomness = mx.array([uniforms(seed, at, sampler.draws)])
    rows = sample(sampler, mx.array(logits), [[mx.array(scores)]], randomness).read()
    return {(row.decision.strategy, row.token) for row in rows}


@given(
    name=st.sampled_from(sorted(SAMPLERS)),
    vocab=st.sampled_from([2, 9, 60, 400]),
    scale=st.sampled_from([0.3, 1.5, 4.0, 9.0]),
    seed=st.integers(0, 10**6),
    share=st.sampled_from([0.3, 0.9, 0.999]),
)
def test_a_smaller_change_changes_nothing(name, vocab, scale, seed, share):
    sampler = SAMPLERS[name]
    rng = np.random.default_rng(seed)
    logits, scores = scale * rng.normal(size=vocab), 2 * rng.normal(size=(4, 12))
    found = slack(sampler, logits, [scores], seed, 7)
    assert 0 <= found <= LARGEST
    if found <= ROUNDING:
        return
    change = share * (found - ROUNDING / 2)
    signs = rng.choice([-1.0, 1.0], size=(40, vocab))
    # The worst of directions: one token up, all others down, and the reverse.
    for row in range(min(vocab, 8)):
        token = np.argsort(-logits)[row]
        signs[2 * row] = np.where(np.arange(vocab) == token, 1, -1)
        signs[2 * row + 1] = -signs[2 * row]
    moved = np.concatenate([logits[None], logits + change * signs])
    attention = scores + change * rng.choice([-1.0, 1.0], size=(len(moved), 4, 12))
    assert len(outcomes(sampler, moved, attention, seed, 7)) == 1


def test_greedy_has_half_the_gap():
    sampler = make_sampler("greedy")
    assert slack(sampler, [3.0, 1.0, 0.5], [np.zeros((2, 3))], 0, 0) == pytest.approx(1.0)


def test_a_border_has_no_slack():
    sampler = make_sampler()
    assert slack(sampler, [1.0, 1.0], [np.zeros((2, 3))], 0, 0) < 0.5
    assert slack(make_sampler("greedy"), [1.0, 1.0, 0.0], [np.zeros((2, 3))], 0, 0) == 0


@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_most_positions_have_more_slack_than_rounding(scale):
    rng = np.random.default_rng(3)
    sampler = make_sampler()
    slacks = [
        slack(sampler, scale * rng.normal(size=2000), [rng.normal(size=(4, 40))], seed, 5)
        for seed in range(20)
    ]
    assert np.mean(np.array(slacks) > ROUNDING) >= 0.6, slacks


def branch_of(leads, winner, **more):
    branches = [Branch((1,) * 4, "", -1.0, 0.0, lead=lead, error=0.2) for lead in (0.0, *leads)]
    return Fork(tuple(branches), winner, **more)


def test_the_slack_of_a_fork():
    rule = make_sampler().profile.branch
    sure = fork_slack(branch_of([-4.0], 0), rule)
    assert sure > 0.1
    assert fork_slack(branch_of([rule.margin * 0.2], 0), rule) == pytest.approx(0, abs=1e-9)
    assert fork_slack(branch_of([3.0, 3.0], 1), rule) == 0
    assert fork_slack(branch_of([-4.0], 0, closest=0.08), rule) == pytest.approx(0.01)


@pytest.mark.parametrize("seed", range(20))
def test_no_smaller_change_than_the_slack_changes_a_fork(seed):
    rng = np.random.default_rng(seed)
    rule = make_sampler().profile.branch
    logprobs = -rng.exponential(size=(4, 6))

    def compared(moved):
        found = leads([Way(list(row), [False] * 6) for row in moved])
        ahead = [n for n, lead in enumerate(found) if lead.exceeds(rule.margin)]
        winner = max(ahead, key=lambda n: found[n].nats, default=0)
        branches = [
            Branch((1,) * 6, "", 0.0, 0.0, lead=lead.nats, error=lead.error) for lead in found
        ]
        return Fork(tuple(branches), winner)

    fork = compared(logprobs)
    reach = 2 * fork_slack(fork, rule)
    for _ in range(50):
        moved = logprobs + reach * rng.uniform(-1, 1, size=logprobs.shape)
        assert compared(moved).winner == fork.winner
        assert compared(logprobs + reach * rng.choice([-1, 1], size=(4, 1))).winner == fork.winner
