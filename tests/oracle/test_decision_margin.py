"""The decision margin of positions and forks whose borders are known."""

import numpy as np
import pytest

from entropix_mlx.profiles.profile import Profile
from entropix_mlx.samplers.registry import make_sampler
from entropix_mlx.step import Branch, Fork
from tests.oracle.decision_margin import decision_margin, fork_margin

ROUNDING = 1e-4


def test_greedy_has_half_the_gap():
    greedy, scores = make_sampler("greedy"), [np.zeros((2, 3))]
    margins = [decision_margin(greedy, [gap, 0.0, -9.0], scores, 0, 0) for gap in (9.0, 0.1, 1e-5)]
    assert margins == [np.inf, 0.1, 1e-5]


def test_a_threshold_is_a_border():
    changes = {"thresholds": {"low_entropy": 0.46900, "low_varentropy": 9}}
    sampler = make_sampler(profile=Profile.load().replace(changes))
    logits = np.log([0.9, 0.1])  # of entropy 0.468996
    assert decision_margin(sampler, logits, [np.zeros((2, 3))], 0, 0) <= ROUNDING


@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_most_positions_are_decided_beyond_rounding(scale):
    rng, sampler = np.random.default_rng(3), make_sampler()
    margins = [
        decision_margin(sampler, scale * rng.normal(size=2000), [rng.normal(size=(4, 40))], seed, 5)
        for seed in range(20)
    ]
    assert np.mean(np.array(margins) > ROUNDING) >= 0.6, margins


def fork_of(leads, winner):
    branches = [Branch((1,) * 4, "", -1.0, 0.0, lead=lead, error=0.2) for lead in (0.0, *leads)]
    return Fork(tuple(branches), winner)


def test_the_margin_of_a_fork():
    rule = make_sampler().profile.branch
    assert fork_margin(fork_of([-4.0], 0), rule) > 0.1
    assert fork_margin(fork_of([rule.margin * 0.2], 0), rule) == pytest.approx(0, abs=1e-9)
    assert fork_margin(fork_of([3.0, 3.0], 1), rule) == 0
