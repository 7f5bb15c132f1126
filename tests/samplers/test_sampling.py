"""The draw, against the exact distribution computed in float64 from the spec's words."""

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from entropix_mlx.profiles.profile import Profile
from entropix_mlx.samplers.base import CODE, Plan, Sampler
from entropix_mlx.samplers.draw import draw, draw_distinct, uniforms
from entropix_mlx.samplers.metrics import most_probable
from entropix_mlx.samplers.position import sample
from entropix_mlx.samplers.registry import make_sampler
from entropix_mlx.step import Strategy
from tests.oracle.samplers import measure, planned

SCORES = mx.zeros((1, 2, 3))
DRAWS = 2500


def filtered(
    logits: np.ndarray, temperature: float, top_p: float, top_k: int, min_p: float
) -> np.ndarray:
    """Return the distribution that the spec describes, in float64."""
    p = np.exp((logits - logits.max()) / temperature, dtype=np.float64)
    p /= p.sum()
    order = np.argsort(-p, kind="stable")
    before = np.concatenate([[0], np.cumsum(p[order])[:-1]])
    keep = np.zeros(p.size, bool)
    keep[order[before < top_p]] = True
    if top_k:
        keep[order[top_k:]] = False
    keep &= p >= min_p * p.max()
    keep[order[0]] = True
    p[~keep] = 0
    return p / p.sum()


def frequencies(sampler: Sampler, plan: Plan | None, logits: np.ndarray, seed: int) -> np.ndarray:
    """Return how often each token is drawn at `DRAWS` positions, drawn as one batch."""
    measured = measure(
        mx.broadcast_to(mx.array(logits.astype(np.float32)), (DRAWS, logits.size)),
        [mx.broadcast_to(SCORES, (DRAWS, 2, 3))],
    )
    plan = plan or planned(sampler, measured)
    randomness = mx.array([uniforms(seed, position, sampler.draws) for position in range(DRAWS)])
    tokens = np.array(draw(measured, plan, sampler.drawing, randomness)[0][:, 0])
    return np.bincount(tokens, minlength=logits.size)


def assert_drawn_from(counts: np.ndarray, p: np.ndarray) -> None:
    assert counts[p == 0].sum() == 0, "a masked token was drawn"
    assert counts[p * DRAWS >= 14].all(), "a token that survives the filters was never drawn"
    usual = p * DRAWS >= 5
    observed = [*counts[usual], counts[~usual].sum()]
    expected = [*(p[usual] * DRAWS), p[~usual].sum() * DRAWS]
    if expected[-1] < 1:  # too little is left for a test
        observed, expected = observed[:-1], np.array(expected[:-1])
        expected = expected / expected.sum() * sum(observed)
    if len(observed) > 1:
        assert stats.chisquare(observed, expected).pvalue > 1e-4


def a_plan(strategy: Strategy, temperature: float, top_p: float, top_k: int, min_p: float) -> Plan:
    full = lambda value: mx.full((DRAWS,), value)  # noqa: E731
    return Plan(full(CODE[strategy]), full(temperature), full(top_p), full(top_k), full(min_p))


LOGITS = np.random.default_rng(7).normal(scale=2.5, size=700)


@pytest.mark.parametrize(
    "parameters",
    [(0.666, 0.9, 27, 0.03), (1.0, 1.0, 100, 0.0), (2.0, 0.5, 27, 0.0), (1.5, 0.9, 5, 0.2)],
)
def test_ranked_draws_follow_the_filtered_distribution(parameters):
    sampler = make_sampler()
    counts = frequencies(sampler, a_plan(Strategy.RESAMPLE, *parameters), LOGITS, seed=1)
    assert_drawn_from(counts, filtered(LOGITS, *parameters))


@pytest.mark.parametrize("candidates", [5, 12])
def test_adaptive_keeps_the_best_of_its_draws(candidates):
    changed = Profile.load().replace({"adaptive": {"candidates": candidates}})
    sampler, parameters = make_sampler(profile=changed), (1.2, 0.95, 40, 0.0)
    assert sampler.draws == candidates
    counts = frequencies(sampler, a_plan(Strategy.ADAPTIVE, *parameters), LOGITS, seed=2)
    p = filtered(LOGITS, *parameters)
    order = np.argsort(-p, kind="stable")
    above = np.concatenate([np.cumsum(p[order][::-1])[::-1], [0]]).clip(0, 1)
    best = np.zeros_like(p)  # P(the best of n has rank r) = P(all ≥ r)^n − P(all > r)^n
    best[order] = above[:-1] ** sampler.draws - above[1:] ** sampler.draws
    assert_drawn_from(counts, best)


def test_argmax_takes_the_most_probable():
    sampler = make_sampler()
    counts = frequencies(sampler, a_plan(Strategy.ARGMAX, 2.0, 1.0, 27, 0.0), LOGITS, seed=3)
    assert counts[LOGITS.argmax()] == DRAWS


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("temperature", {"temperature": 0.8}, (0.8, 1.0, 0, 0.0)),
        ("top_p", {"top_p": 0.7}, (1.0, 0.7, 0, 0.0)),
        ("min_p", {"temperature": 1.5}, (1.5, 1.0, 0, 0.1)),
        ("temperature", {"top_k": 300, "top_p": 0.95}, (1.0, 0.95, 300, 0.0)),
        ("top_n_sigma", {"temperature": 1.7}, (1.7, 1.0, 0, 0.0)),
        ("p_less", {}, (1.0, 1.0, 0, 0.0)),
    ],
)
def test_baselines_draw_from_their_distribution(name, given, expected):
    p = filtered(LOGITS, *expected)
    if name == "top_n_sigma":
        p[LOGITS.max() - 1.0 * LOGITS.std() > LOGITS] = 0
    if name == "p_less":
        p[p < (p**2).sum()] = 0
    counts = frequencies(make_sampler(name, given=given), None, LOGITS, seed=4)
    assert_drawn_from(counts, p / p.sum())


@given(seed=st.integers(-(2**70), 2**70), position=st.integers(0, 10**6), draws=st.integers(1, 12))
def test_a_draw_does_not_depend_on_how_many_are_made(seed, position, draws):
    values = uniforms(seed, position, 12)
    own = uniforms(seed, position, draws)
    assert own[:-1] == values[: draws - 1]
    assert own[-1] == [min(first for first, _ in own), values[draws - 1][1]]
    assert own[-1][0] >= values[-1][0]
    assert all(0 <= u < 1 and np.float32(u) == u for pair in values for u in pair)


def test_positions_and_seeds_have_their_own_randomness():
    seen = {tuple(uniforms(seed, position, 1)[0]) for seed in range(40) for position in range(40)}
    assert len(seen) == 1600


@given(st.integers(1, 3000), st.integers(1, 150), st.integers(0, 5))
def test_most_probable_is_a_sort(vocab, count, ties):
    rng = np.random.default_rng(vocab * 151 + count)
    gaps = rng.gamma(2.0, size=(2, vocab)).astype(np.float32).round(ties + 1)
    tokens, found = most_probable(mx.array(gaps), count)
    expected = np.sort(gaps, axis=-1)[:, :count]
    np.testing.assert_array_equal(np.array(found), expected)
    np.testing.assert_array_equal(np.take_along_axis(gaps, np.array(tokens), axis=-1), expected)


@given(
    logits=st.lists(
        st.sampled_from([-np.inf, -1e30, -50.0, 0.0, 1e-3, 1.0, 80.0, 1e30]),
        min_size=2,
        max_size=80,
    ).filter(lambda z: max(z) > -np.inf),
    name=st.sampled_from(["entropix", "temperature", "top_p", "min_p", "top_n_sigma", "p_less"]),
    temperature=st.sampled_from([0.0, 1e-3, 0.7, 2.0]),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=80, deadline=None)
def test_extreme_logits_draw_a_possible_token(logits, name, temperature, seed):
    sampler = make_sampler(name, given={"temperature": temperature})
    measured = measure(mx.array([logits]), [SCORES])
    plan = planned(sampler, measured)
    randomness = mx.array([uniforms(seed, 0, sampler.draws)])
    token, logprob = draw(measured, plan, sampler.drawing, randomness)
    assert logits[token.item()] > -np.inf
    assert np.isfinite(logprob.item())


def first_tokens(sampler: Sampler, plan: Plan, logits: np.ndarray, count: int, seed: int):
    measured = measure(mx.array(logits[None].astype(np.float32)), [SCORES])
    one = Plan(*(array[:1] for array in plan.parameters))
    return [
        draw_distinct(measured.gaps, one, sampler.drawing, count, seed, position)
        for position in range(1500)
    ]


@pytest.mark.slow
def test_first_tokens_are_drawn_without_replacement():
    parameters = (1.3, 1.0, 12, 0.0)
    logits = LOGITS[:40]
    drawn = first_tokens(make_sampler(), a_plan(Strategy.BRANCH, *parameters), logits, 4, 3)
    top = logits.argmax()
    p = filtered(logits, *parameters)
    p[top] = 0
    p /= p.sum()
    assert all(tokens[0] == top and len(set(tokens)) == 4 for tokens in drawn)
    second = np.bincount([tokens[1] for tokens in drawn], minlength=40) * (DRAWS / len(drawn))
    usual = p * len(drawn) >= 8
    chi = ((second - p * DRAWS)[usual] ** 2 / (p * DRAWS)[usual]).sum() * len(drawn) / DRAWS
    assert stats.chi2.sf(chi, usual.sum()) > 1e-4
    assert second[p == 0].sum() == 0


@pytest.mark.slow
def test_filtered_tokens_come_after_all_others():
    """A fork has the width that was asked for, even where few tokens survive the filters."""
    drawn = first_tokens(make_sampler(), a_plan(Strategy.BRANCH, 1.0, 1.0, 3, 0.0), LOGITS, 5, 3)
    best = np.argsort(-LOGITS)
    for tokens in drawn[:200]:
        assert set(tokens[:3]) == set(best[:3])
        assert len(set(tokens)) == 5


def test_no_temperature_gives_a_token_a_chance_that_is_not_allowed():
    rng = np.random.default_rng(0)
    logits = mx.array(rng.normal(size=(500, 64)).astype(np.float32))
    mask = mx.array(np.tile(np.array([0b1011, 0], np.uint32), (500, 1)))
    sampler = make_sampler("temperature", given={"temperature": 1000.0})
    randomness = mx.array([uniforms(1, place, sampler.draws) for place in range(500)])
    drawn = sample(sampler, logits, None, randomness, mask=mask).token
    assert set(drawn.tolist()) == {0, 1, 3}


@pytest.mark.parametrize("name", ["min_p", "temperature", "top_p", "entropix"])
def test_a_uniform_of_zero_draws_no_token_that_cannot_be(name):
    logits = mx.array([[-1e4, 0.0, 3.0, 2.9]])
    sampler = make_sampler(name)
    token = sample(sampler, logits, None, mx.zeros((1, sampler.draws, 2))).token
    assert token.item() != 0
