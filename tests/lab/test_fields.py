"""Thresholds for fields: set on one half of the rows, and as strict as the risk asks."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entropix_mlx.extraction.rows import Row
from entropix_mlx.lab.calibration.fields import fit_fields, is_right, rows_needed

graded = st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=2, max_size=60)


@given(graded, st.sampled_from([0.02, 0.1, 0.3]))
def test_a_threshold_keeps_the_risk_on_the_half_it_was_set_on(outcomes, risk):
    rows = [Row("a", {"x": right}, {"x": sure}) for sure, right in outcomes]
    [found] = fit_fields(rows, [{"x": True}] * len(rows), risk)
    taken = [right for sure, right in outcomes[::2] if sure >= found.threshold]
    if math.isinf(found.threshold):
        assert found.least_risk > risk
    else:
        assert (taken.count(False) + 1) / (len(taken) + 1) <= risk + 1e-9
        assert len(taken) >= rows_needed(risk)
    held_out = [right for sure, right in outcomes[1::2] if sure >= found.threshold]
    assert (found.taken, found.wrong) == (len(held_out), held_out.count(False))


@pytest.mark.parametrize(
    ("value", "label", "right"),
    [("a  b", "a b", True), ("a", "A", False), (1, True, False), (1, 1.0, True), ([1], [1], True)],
)
def test_values_are_compared_as_json(value, label, right):
    assert is_right(value, label) is right


def test_a_row_that_failed_counts_for_no_field():
    rows = [Row("a", error="cut off"), Row("b", {"x": 1}, {"x": 0.5})]
    [found] = fit_fields(rows, [{"x": 1}] * 2, 0.5)
    assert found.n == 1
