"""What explains a decision agrees with what makes it: conditions, strategy and near miss."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from entropix_mlx import Profile, decide
from entropix_mlx.chat.recorded import demo_profile
from entropix_mlx.profiles.sections import Thresholds
from entropix_mlx.profiles.tree import classify
from entropix_mlx.step import Branch, Fork, Metrics, Origin, Strategy
from entropix_mlx.traces.explain import Condition, cases_of, decided, explain
from tests.steps import make_step

CASES = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "data" / "decisions.jsonl").read_text().splitlines()
]
REFERENCE = Profile.load()
DEMO = demo_profile()
THRESHOLDS = st.fixed_dictionaries(
    dict.fromkeys(Thresholds.model_fields, st.sampled_from([0.0, 0.5, 2.0, 5.0, np.inf]))
)
MEASUREMENTS = st.builds(
    lambda h, v, m: {"entropy": h, "varentropy": v, "margin": m},
    st.floats(0, 12),
    st.floats(0, 30),
    st.floats(0, 1),
)


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_agrees_with_the_decision_cases(case):
    expected = case["expect"]
    metrics = Metrics(*(expected.get(name, 0.0) for name in Metrics._fields))
    found = decided(cases_of(REFERENCE, metrics)).strategy
    assert (found.sampled() if case["just_inserted"] else found) == expected["strategy"]


@given(st.lists(st.floats(-20, 20, width=32), min_size=2, max_size=60), THRESHOLDS)
def test_agrees_with_decide(logits, thresholds):
    profile = REFERENCE.replace({"thresholds": thresholds})
    decision = decide(logits, np.zeros((2, 3)), profile)
    assert decided(cases_of(profile, decision.metrics)).strategy is decision.strategy


@given(MEASUREMENTS, THRESHOLDS)
def test_the_reason_is_the_first_case_that_fits(measured, thresholds):
    profile = REFERENCE.replace({"thresholds": thresholds})
    step = make_step(0, "x", **measured)
    (strategy,) = classify([step], profile)
    explanation = explain(profile, make_step(0, "x", strategy, **measured))
    assert explanation.reason is decided(explanation.cases)
    assert explanation.reason.strategy is strategy
    if explanation.near is not None:
        assert explanation.near.unmet
        assert explanation.cases.index(explanation.near) < explanation.cases.index(
            explanation.reason
        ), "what comes later would not win, whatever it measured"
    for condition in (c for case in explanation.cases for c in case.conditions):
        side = condition.value - condition.bound
        assert condition.met is (side > 0 if condition.above else side < 0)
        assert condition.distance == abs(side)


FORK = Fork(tuple(Branch((n,), "x", -1.0, 1.0) for n in range(5)), 0)
INSERTED = {"entropy": 4.0, "varentropy": 1.0, "origin": Origin.INSERTED}
FORKED = {"entropy": 3.13, "varentropy": 14.5, "margin": 0.06, "origin": Origin.BRANCH}
CERTAIN = {"entropy": 0.5, "varentropy": 1.5}


@pytest.mark.parametrize(
    ("strategy", "changes", "said", "unsaid"),
    [
        (Strategy.BRANCH, FORKED | {"fork": FORK}, ("▲", "H 3.13 < 5.30", "5 branches"), ""),
        (Strategy.ADAPTIVE, {"entropy": 3.13, "varentropy": 14.5, "margin": 0.65},
         ("○", "nearly ▲: margin 0.65 > 0.19"), "H 3.13"),
        (Strategy.ARGMAX, CERTAIN, ("●", "H 0.50 < 2.02", "V 1.50 < 6.43"), "nearly"),
        (Strategy.ARGMAX, {"entropy": 6.0}, ("●",), "6.0"),  # other thresholds decided that
        (Strategy.SAMPLE, {"temperature": 1.0}, ("·", "T 1.00"), "H "),
        (Strategy.THINK, INSERTED | {"rolled_back": 1}, ("◆", "V 1.00 < 6.04", "nearly ●"), ""),
        (Strategy.THINK, INSERTED, ("◆",), "V 1.00"),  # a later token of the text
        (Strategy.THINK, INSERTED | {"rolled_back": 1, "triggered_at": 2}, ("token 3",), "V 1.00"),
    ],
)  # fmt: skip
def test_the_line_names_what_decided_and_nothing_else(strategy, changes, said, unsaid):
    line = str(explain(DEMO, make_step(3, "x", strategy, **changes)))
    assert all(part in line for part in said)
    assert not unsaid or unsaid not in line


def test_numbers_that_differ_are_written_differently():
    assert Condition("entropy", 5.001, 5.0, above=False).text == "H 5.001 > 5.000"
    assert Condition("entropy", 5.0, 5.0, above=False).text == "H 5.00 = 5.00"
