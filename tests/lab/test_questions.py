"""Questions: where they come from, their halves, worked examples, and mistakes in files of them."""

import math
import re

import pytest

from entropix_mlx.errors import PromptError, SettingsError
from entropix_mlx.lab.questions import ALL, ARITHMETIC_LEVELS, FIT, REPORT, Selection, problems_of


def of(task, split=REPORT, **selection):
    return problems_of(task, Selection(split=split, **selection))


@pytest.mark.parametrize("task", ["arithmetic", "facts"])
def test_halves_are_disjoint_and_no_reported_question_is_a_worked_example(task):
    fit, report = of(task, FIT, limit=600), of(task, REPORT, limit=600)
    assert {q.split for q in fit} == {FIT}
    assert {q.split for q in report} == {REPORT}
    assert not {(q.level, q.subject) for q in fit} & {(q.level, q.subject) for q in report}
    shown = {(question.level, text) for question in report for text, _ in question.examples}
    assert not shown & {(question.level, question.text) for question in report}


def test_worked_examples_are_drawn_anew_and_never_about_the_question():
    questions = of("arithmetic", limit=60, examples=3)
    assert all(len(set(question.examples)) == 3 for question in questions)
    assert len({question.examples for question in questions}) > 55
    for question in questions:
        assert question.text not in {text for text, _ in question.examples}


def test_questions_depend_on_the_seed_alone_and_a_higher_limit_adds_to_them():
    assert of("arithmetic", limit=40) == of("arithmetic", limit=80)[:40]
    assert of("arithmetic", limit=40) != of("arithmetic", limit=40, seed=1)
    assert of("facts") == of("facts")
    assert len(of("capitals", ALL)) > 140
    ids = [q.id for q in of("arithmetic", limit=3000)]
    assert len(set(ids)) == len(ids) > 1500, "some levels have fewer questions"


@pytest.mark.parametrize("level", ARITHMETIC_LEVELS)
def test_a_question_states_what_its_answer_is_computed_from(level):
    right = {
        **dict.fromkeys(("mul1", "mul21"), math.prod),
        **dict.fromkeys(("sub2", "sub18"), lambda n: n[0] - n[1]),
        **{"count": lambda n: n[2] + 1, "after": lambda n: n[0] + 1},
    }
    questions = [one for one in of("arithmetic", limit=200) if one.level == level]
    assert len(questions) > 20
    for question in questions:
        numbers = [int(number) for number in re.findall(r"\d+", question.text)]
        assert question.answers == (str(right.get(level, sum)(numbers)),)
        assert question.rule == "number"


def test_questions_from_files(tmp_path):
    own = tmp_path / "own.jsonl"
    own.write_text(
        '{"question": "2 + 2?", "answer": 4, "rule": "number", "level": "easy"}\n'
        '{"question": "Capital of France?", "answer": ["Paris", "paris"], "id": "f", "level": "x"}'
        "\n"
    )
    assert {(q.id, q.level) for q in of(str(own), ALL)} == {("own/1", "easy"), ("own/f", "x")}


@pytest.mark.parametrize(
    ("task", "names"),
    [
        ("nonsense", "nonsense"),
        ("missing.jsonl", "missing"),
        ("{}/bad.jsonl", "line 1"),
        ("{}/key.jsonl", "colour"),
        ("{}/rule.jsonl", "line 1"),
        ("{}/empty.jsonl", "empty"),
    ],
)
def test_mistakes_in_tasks(tmp_path, task, names):
    for name, text in {
        "bad": "{",
        "key": '{"question": "a", "answer": "b", "colour": 1}',
        "rule": '{"question": "a", "answer": "b", "rule": "x"}',
        "empty": "",
    }.items():
        (tmp_path / f"{name}.jsonl").write_text(text)
    with pytest.raises(PromptError, match=names):
        of(task.format(tmp_path), ALL)


@pytest.mark.parametrize("count", [-1, 99_999])
def test_selections_that_cannot_be_made(count):
    with pytest.raises(SettingsError, match="examples"):
        Selection(examples=count)
