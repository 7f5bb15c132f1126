"""Thresholds by what an intervention does: places whose best threshold is known."""

import math

import pytest

from entropix_mlx import Profile
from entropix_mlx.lab.answering import Answered
from entropix_mlx.lab.calibration.ablation import (
    BRANCH,
    OFF,
    RESAMPLE,
    first_place,
    only,
    used,
    without,
)
from entropix_mlx.lab.calibration.calibrate import TRIED
from entropix_mlx.lab.calibration.worth import LEAST_PLACES, PlaceEffect, forks, worth
from entropix_mlx.settings import Settings
from entropix_mlx.step import Branch, Fork, Strategy
from tests.steps import make_step


def places(*effects, cost=10.0):
    """Places at 1, 2, 3 … of the metric."""
    return [
        PlaceEffect(n, effect, cost, "code" if n % 2 else "prose")
        for n, effect in enumerate(effects, 1)
    ]


def test_the_threshold_is_where_the_effect_is_not_worth_its_price():
    effects = [0.0] * 30 + [1.0] * 20
    found = worth(places(*effects), price=0.05, loosest=0.0)
    assert found.threshold == 30.5
    assert len(found.beyond) == 20
    assert len(found.below) == 30
    record = found.record()
    assert record["beyond"] == {"n": 20, "cost": 10.0, "effect": [1.0] * 3, "net": [0.5] * 3}
    assert record["kinds"]["code"]["n"] == record["kinds"]["prose"]["n"] == 10


@pytest.mark.parametrize(
    ("effects", "cost", "price", "loosest", "threshold"),
    [
        ([0.0] * 20 + [1.0] * 20 + [3.0] * 20, 10.0, 0.05, 0.0, 20.5),
        ([0.0] * 20 + [1.0] * 20 + [3.0] * 20, 10.0, 0.2, 0.0, 40.5),
        ([0.0] * 20 + [1.0] * 20 + [3.0] * 20, 10.0, 0.4, 0.0, math.inf),
        ([1.0] * 50, 10.0, 0.05, 20.0, 20.0),  # the share is an upper limit
        ([-1.0] * 25 + [0.5] * 15, 0.0, 0.02, 0.0, 25.5),  # harm counts where nothing costs
    ],
)
def test_thresholds(effects, cost, price, loosest, threshold):
    assert worth(places(*effects, cost=cost), price, loosest).threshold == threshold


@pytest.mark.parametrize(
    "effects", [[], [1.0] * (LEAST_PLACES - 1), [-0.1] * 50, [-2.0] * 40 + [-3.0, 4.0] * 8]
)
def test_without_evidence_or_effect_there_is_no_threshold(effects):
    found = worth(places(*effects, cost=0.0), price=0.02, loosest=0.0)
    assert math.isinf(found.threshold)
    assert found.record()["beyond"] == {"n": 0}


def test_places_that_measure_alike_stay_together():
    alike = [PlaceEffect(5.0, effect, 0.0) for effect in [1.0] * 12 + [-1.0] * 3]
    found = worth([*alike, *(PlaceEffect(1.0, -1.0, 0.0) for _ in range(5))], 0.0, 0.0)
    assert found.threshold == 3.0
    assert len(found.beyond) == 15


def test_a_fork_effects_what_its_winner_leads_by():
    first = Branch((1, 2, 3), " a", -1.0, 2.0, lead=0.0, error=0.0)
    other = Branch((4, 5, 6, 7), " b", -0.5, 2.0, lead=0.5, error=0.1)

    def fork(winner, length):
        fork = Fork((first, other), winner)
        steps = [make_step(n, "x", varentropy=9.0) for n in range(length)]
        steps[0] = make_step(0, "x", varentropy=9.0, fork=fork, rolled_back=1)
        return Answered([1], Settings(seed=0), steps, "Why?")

    won, stayed = forks([fork(1, 4), fork(0, 3)], {"Why?": "prose"})
    assert won == PlaceEffect(9.0, 1.5, 1 + 3, "prose"), (
        "three tokens in common; one draw, three tokens"
    )
    assert stayed == PlaceEffect(9.0, 0.0, 1 + 4, "prose")


def test_interventions_act_where_their_strategies_are():
    profile = Profile.load().replace({"branch": TRIED})
    steps = [
        make_step(n, "x", entropy=entropy, varentropy=varentropy, margin=0.1)
        for n, (entropy, varentropy) in enumerate([(1.0, 1.0), (4.0, 9.0), (6.0, 9.0)])
    ]
    assert used(profile) == list(OFF)
    assert used(only(profile, BRANCH)) == [BRANCH]
    assert first_place(steps, profile) == 1
    assert first_place(steps, only(profile, RESAMPLE)) == 2
    assert first_place(steps, without(profile, *OFF)) is None
    think = make_step(0, "x", Strategy.THINK_SAMPLE, entropy=9.0, varentropy=0.0)
    assert first_place([think], profile) == 0
