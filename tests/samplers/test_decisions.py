"""The decision cases, computed in float64 and checked against a published port of the sampler."""

import json
from pathlib import Path

import mlx.core as mx
import pytest

from entropix_mlx import Profile, decide
from entropix_mlx.errors import NonFiniteLogitsError
from entropix_mlx.step import Strategy

DATA = Path(__file__).parents[1] / "data" / "decisions.jsonl"
CASES = [json.loads(line) for line in DATA.read_text().splitlines()]
# Below this, float32 inputs differ from the float64 ones of the cases by more than the tolerance.
ABSOLUTE = 1e-12


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_reproduces_the_case(case):
    decision = decide(
        case["logits"], case["attention_scores"], "reference", just_inserted=case["just_inserted"]
    )
    expected = dict(case["expect"])
    parameters = expected.pop("parameters")
    assert decision.strategy == expected.pop("strategy")
    for name, value in parameters.items():
        assert getattr(decision, name) == pytest.approx(value, rel=1e-4, abs=ABSOLUTE), name
    for name, value in expected.items():
        assert decision.metrics[name] == pytest.approx(value, rel=1e-4, abs=ABSOLUTE), name


def test_where_several_rows_of_the_tree_fit_the_first_decides():
    both = {"think_min_entropy": -1.0, "think_max_varentropy": 99.0, "branch_min_varentropy": -1.0}
    profile = Profile.load().replace({"thresholds": both | {"branch_max_margin": 2.0}})
    assert decide([2.0, 1.0, 0.0], [[0.0, 1.0]], profile).strategy is Strategy.THINK
    never = profile.replace({"thresholds": {"think_min_entropy": 99.0}})
    assert decide([2.0, 1.0, 0.0], [[0.0, 1.0]], never).strategy is Strategy.BRANCH


def test_every_strategy_is_among_the_cases():
    strategies = {case["expect"]["strategy"] for case in CASES}
    assert strategies == {"argmax", "think", "think-sample", "branch", "resample", "adaptive"}


@pytest.mark.parametrize("bad", [[float("nan"), 1.0], [float("inf"), 1.0], [-float("inf")] * 3])
def test_refuses_logits_that_are_no_distribution(bad):
    with pytest.raises(NonFiniteLogitsError):
        decide(bad, [[0.0, 1.0]])


@pytest.mark.parametrize(
    "dtype", [mx.float32, mx.float16, pytest.param(mx.bfloat16, marks=pytest.mark.bfloat16)]
)
def test_takes_mlx_arrays(dtype):
    decision = decide(mx.array([4.0, 0.5, 0.25]).astype(dtype), mx.zeros((2, 3)).astype(dtype))
    assert decision == decide([4.0, 0.5, 0.25], [[0.0] * 3] * 2)


def test_refuses_other_shapes():
    with pytest.raises(ValueError, match="vocab"):
        decide([[1.0, 2.0]], [[0.0, 1.0]])
