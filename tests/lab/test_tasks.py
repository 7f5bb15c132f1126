"""Questions: where they come from, their halves, worked examples, and mistakes in files of them."""

import math
import re

import pytest

from entropix_mlx.errors import PromptError, SettingsError
from entropix_mlx.lab.evaluation import tasks
from entropix_mlx.lab.evaluation.questions import FIT, REPORT, Selection


def of(task, split=None, **selection):
    return tasks.problems_of(task, Selection(**selection), split)


@pytest.mark.parametrize("task", ["arithmetic", "stories", "facts", "notes"])
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
    assert len(of("capitals", "all", levels=("add1",))) > 140, "a kind has no levels"
    ids = [q.id for q in of("arithmetic", limit=3000)]
    assert len(set(ids)) == 3000  # also where a level has fewer questions than are asked for


@pytest.mark.parametrize(
    ("task", "level"),
    [
        *(("arithmetic", level) for level in ("count", "after", "plus1", "add2", "sub2", "mul21")),
        *(("sentences", level) for level in ("add1", "mul1", "sub18")),
        *(("stories", level) for level in ("gains", "gives", "bags")),
    ],
)
def test_a_question_states_what_its_answer_is_computed_from(task, level):
    right = {
        **dict.fromkeys(("mul1", "mul21", "bags"), math.prod),
        **dict.fromkeys(("gives", "sub2", "sub18"), lambda n: n[0] - n[1]),
        **{"count": lambda n: n[2] + 1, "after": lambda n: n[0] + 1},
    }
    for question in of(task, limit=30, levels=(level,)):
        numbers = [int(number) for number in re.findall(r"\d+", question.text)]
        assert question.answers == (str(right.get(level, sum)(numbers)),)
        assert question.rule == ("number" if task == "arithmetic" else "last")


def test_notes_answer_their_questions(tmp_path):
    tasks.write_notes(tmp_path)
    texts = "".join(file.read_text() for file in tmp_path.iterdir())
    for question in of("notes", "all", limit=200):
        subject = question.subject.partition("/")[2]
        lines = [line for line in texts.splitlines() if subject in line]
        assert any(question.answers[0] in line for line in lines)


def test_questions_from_files(tmp_path):
    own = tmp_path / "own.jsonl"
    own.write_text(
        '{"question": "2 + 2?", "answer": 4, "rule": "number", "level": "easy"}\n'
        '{"question": "Capital of France?", "answer": ["Paris", "paris"], "id": "f", "level": "x"}'
        "\n"
    )
    assert {(q.id, q.level) for q in of(str(own))} == {("own/1", "easy"), ("own/f", "x")}
    svamp = tmp_path / "svamp.json"
    svamp.write_text(
        '[{"ID": "c-1", "Body": "Ann has 3 apples", "Question": "How many?", "Answer": 3.0,'
        ' "Type": "Addition"}]'
    )
    (problem,) = of(f"svamp={svamp}")
    assert (problem.text, problem.answers) == ("Ann has 3 apples. How many?", ("3",))
    gsm8k = tmp_path / "gsm8k.jsonl"
    gsm8k.write_text('{"question": "How many?", "answer": "2+1 = <<2+1=3>>3\\n#### 3"}\n')
    (problem,) = of(f"gsm8k={gsm8k}")
    assert problem.answers == ("2+1 = 3 #### 3",)


@pytest.mark.parametrize(
    ("task", "names"),
    [
        ("nonsense", "nonsense"),
        ("svamp", "svamp=FILE"),
        ("missing.jsonl", "missing"),
        ("{}/bad.jsonl", "line 1"),
        ("{}/key.jsonl", "colour"),
        ("{}/rule.jsonl", "question 1"),
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
        of(task.format(tmp_path))


@pytest.mark.parametrize("count", [-1, 99_999])
def test_selections_that_cannot_be_made(count):
    with pytest.raises(SettingsError, match="examples"):
        Selection(examples=count)
    with pytest.raises(PromptError, match="level"):
        of("arithmetic", levels=("hard",))
