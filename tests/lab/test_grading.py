"""Grading: what counts as right, and that a longer text gets no second try."""

import pytest

from entropix_mlx import limits
from entropix_mlx.errors import PromptError
from entropix_mlx.lab.evaluation import grading


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
        ("regex", "about 12 km", r"\b12\b", True),
        ("regex", "112 km", r"\b12\b", False),
        ("final", "3 times 4 is 12 #### 12", "12", True),
        ("final", "3 times 4 is 12", "12", False),
        ("final", "#### 13 #### 12", "12", False),
        ("final", "12", "4 · 3 = 12 #### 12", False),
        ("final", "#### 12", "4 · 3 = 13 #### 12", True),
    ],
)
def test_rules(rule, text, answer, right):
    assert grading.is_right(rule, text, [answer]) is right


def test_an_expression_that_would_search_for_ever_is_reported(monkeypatch):
    monkeypatch.setattr(limits, "PATTERN_SECONDS", 0.05)
    with pytest.raises(PromptError, match="regular expression"):
        grading.is_right("regex", "a" * 60 + "!", ["(a|aa)+$"])


def test_any_of_several_answers_is_right():
    assert grading.is_right("exact", "Kiev", ["Kyiv", "Kiev"])


def test_two_texts_that_say_the_same():
    assert grading.extracted("number", "7 + 5 = 12") == grading.extracted("number", "12.0")
    assert grading.extracted("exact", "The Paris.") == grading.extracted("exact", "paris")
    assert grading.extracted("number", "none") == ""


@pytest.mark.parametrize(
    ("rule", "answer", "says"),
    [
        ("fuzzy", "x", "fuzzy"),
        ([], "x", "grading rule"),
        ("number", "twelve", "twelve"),
        ("number", "9" * 400, "no number"),
        ("contains", "x" * 200_000, "200,000"),
        ("choice", "12", "choice"),
        ("regex", "(", "regular"),
        ("regex", "a{99999999999}", "repeat"),
        ("regex", "(?:(?:a{9999}){9,}){9999}", "repeat"),
        ("regex", "(" * 500 + ")" * 500, "regular"),
        ("regex", "a" * 1001, "1,001"),
    ],
)
def test_mistakes_of_a_rule(rule, answer, says):
    with pytest.raises(PromptError, match=says):
        grading.check_rule(rule, [answer])
