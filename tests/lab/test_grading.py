"""Grading: what counts as right, and that a longer text gets no second try."""

import pytest

from entropix_mlx.errors import PromptError
from entropix_mlx.lab import grading


@pytest.mark.parametrize(
    ("rule", "text", "answer", "right"),
    [
        ("number", "12", "12", True),
        ("number", " 12.\nQuestion: 13", "12", True),
        ("number", "12.0", "12", True),
        ("number", "1,234 apples", "1234", True),
        ("number", "-3", "-3", True),
        ("number", "−3", "-3", True),
        ("number", "7 + 5 = 12", "12", True),
        ("number", "7 + 5 = 11, so 12", "12", False),
        ("number", "The answer is 12", "12", True),
        ("number", "11 or 12", "12", False),
        ("number", "5\n12", "12", False),
        ("number", "", "12", False),
        ("number", "120", "12", False),
        ("exact", "Paris.", "Paris", True),
        ("exact", "paris, of course", "Paris", True),
        ("exact", "The Paris", "Paris", True),
        ("exact", "Bogota", "Bogotá", True),
        ("exact", "Port au Prince", "Port-au-Prince", True),
        ("exact", '"went"', "went", True),
        ("exact", "Not Paris", "Paris", False),
        ("exact", "Lyon\nParis", "Paris", False),
        ("exact", "", "Paris", False),
        ("choice", "B", "B", True),
        ("choice", "(b) Paris", "B", True),
        ("choice", "Because", "B", False),
        ("choice", "A or B", "B", False),
        ("contains", "about 12 km", "12", True),
        ("contains", "112 km", "12", False),
        ("last", "3 and 4 are 7", "7", True),
    ],
)
def test_rules(rule, text, answer, right):
    assert grading.is_right(rule, text, [answer]) is right


def test_any_of_several_answers_is_right():
    assert grading.is_right("exact", "Kiev", ["Kyiv", "Kiev"])


@pytest.mark.parametrize(
    ("rule", "answer", "says"),
    [
        ("fuzzy", "x", "fuzzy"),
        ([], "x", "grading rule"),
        ("number", "twelve", "twelve"),
        ("number", "9" * 400, "number"),
        ("choice", "12", "choice"),
    ],
)
def test_mistakes_of_a_rule(rule, answer, says):
    with pytest.raises(PromptError, match=says):
        grading.check_rule(rule, [answer])
