"""Questions from files: SVAMP, GSM8K, and JSON Lines of your own.

A line of your own is an object with ``question``, ``answer`` (a text, a number, or a list of them)
and, where it is not "exact", ``rule``: how to grade, a key of `grading.RULES`. It may have ``id``
and ``level``. Worked examples are drawn from the questions of the same level.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ... import limits
from ...errors import PromptError, brief
from ...records import from_record, parse_json
from . import grading
from .questions import Problem

_KEYS = ("question", "answer", "rule", "id", "level")
_SHAPE = "question must be a text, and answer a text, a number, or a list of them"


def read_problems(task: str, path: str | Path) -> dict[str, list[Problem]]:
    """Return the questions of a file by their level.

    A task that is no key of `FORMATS` has a file of your own.

    Raises:
        PromptError: the file cannot be read, or has a mistake; the message names its line.
    """
    path = Path(path)
    problems: dict[str, Problem] = {}
    for number, record in _records(path):
        where = f"{path}, question {number}"
        if not isinstance(record, dict):
            raise PromptError(f"{where}: write an object with question and answer")
        try:
            problem = FORMATS.get(task, _own)(task, number, record)
        except (ValueError, PromptError) as error:
            raise PromptError(f"{where}: {error}") from None
        if problem.id in problems:
            raise PromptError(f"{where}: another question has the id {problem.id!r}, too")
        problems[problem.id] = problem
    if not problems:
        raise PromptError(f"{path} has no questions: write a JSON object a line")
    levels: dict[str, list[Problem]] = {}
    for problem in problems.values():
        levels.setdefault(problem.level, []).append(problem)
    return levels


def _records(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield the objects of a JSON array, or of JSON Lines, with their numbers."""
    text = limits.read_named(path, limits.PROMPTS_BYTES, PromptError)
    if text.lstrip().startswith("["):
        yield from enumerate(parse_json(text, str(path), PromptError), 1)
        return
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield number, parse_json(line, f"{path}, line {number}", PromptError)


@dataclass(frozen=True)
class _Svamp:
    """A record of SVAMP."""

    ID: str
    Body: str
    Question: str
    Answer: float
    Type: str = ""


@dataclass(frozen=True)
class _Gsm8k:
    """A record of GSM8K."""

    question: str
    answer: str


def _svamp(task: str, number: int, record: dict[str, Any]) -> Problem:
    """Return a problem of arXiv 2103.07191."""
    given = from_record(_Svamp, record)
    body = given.Body.strip()
    return Problem(
        id=f"{task}/{given.ID}",
        task=task,
        level=(given.Type or task).lower(),
        subject=given.ID,
        text=f"{body if body.endswith(('.', '?', '!')) else body + '.'} {given.Question}",
        answers=(f"{given.Answer:g}",),
        rule="number",
    )


def _gsm8k(task: str, number: int, record: dict[str, Any]) -> Problem:
    """Return a problem of arXiv 2110.14168: the number after ``####`` counts.

    A worked example shows the whole solution on one line, without its calculator notes.
    """
    given = from_record(_Gsm8k, record)
    solution, mark, final = given.answer.rpartition("####")
    if not mark:
        raise PromptError("the answer has no line that begins with ####")
    parts = [part.partition(">>")[2] for part in ("<<>>" + solution).split("<<")[1:]]
    shown = " ".join("".join(parts).split())
    grading.check_rule("final", (final,))
    return Problem(
        id=f"{task}/{number}",
        task=task,
        level=task,
        subject=given.question,
        text=given.question,
        answers=(f"{shown} #### {final.strip()}",),
        rule="final",
    )


def _own(task: str, number: int, record: dict[str, Any]) -> Problem:
    for key in record:
        if key not in _KEYS:
            raise PromptError(f"unknown key {brief(key)}; known: {', '.join(_KEYS)}")
    given, text = record.get("answer"), record.get("question")
    answers = tuple(_answer(value) for value in (given if isinstance(given, list) else [given]))
    if not isinstance(text, str) or not text.strip() or not answers:
        raise PromptError(_SHAPE)
    rule = record.get("rule", "exact")
    grading.check_rule(rule, answers)
    return Problem(
        id=f"{task}/{_name(record, 'id', number)}",
        task=task,
        level=_name(record, "level", task),
        subject=text,
        text=text,
        answers=answers,
        rule=rule,
    )


def _name(record: dict[str, Any], key: str, default: object) -> str:
    value = record.get(key, default)
    if type(value) not in (str, int, float):
        raise PromptError(f"{key} must be a text or a number, not {brief(value)}")
    return str(value)


def _answer(value: Any) -> str:
    number = type(value) in (int, float) and abs(value) <= limits.NUMBER
    if not number and (not isinstance(value, str) or not value):
        raise PromptError(f"answer: a text or a number of usual size, not {brief(value)}")
    return value if isinstance(value, str) else f"{value:.15g}"


FORMATS: dict[str, Callable[[str, int, dict[str, Any]], Problem]] = {
    "svamp": _svamp,
    "gsm8k": _gsm8k,
}
"""Readers of the records of published files, by name."""
