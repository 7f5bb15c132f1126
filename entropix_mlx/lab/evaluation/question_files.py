"""Questions from files: SVAMP, GSM8K, and JSON Lines of your own.

A line of your own is an object with ``question``, ``answer`` (a text, a number, or a list of them)
and, where it is not "exact", ``rule``: how to grade, a key of `grading.RULES`. It may have ``id``
and ``level``. Worked examples are drawn from the questions of the same level.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ... import old_names
from ...errors import PromptError, brief, first_line
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
        except KeyError as error:
            raise PromptError(f"{where} has no {error}") from None
        except PromptError as error:
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
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except (OSError, ValueError) as error:
        raise PromptError(f"cannot read the questions in {path}: {error}") from error
    if text.lstrip().startswith("["):
        yield from enumerate(_parse(text, str(path)), 1)
        return
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield number, _parse(line, f"{path}, line {number}")


def _parse(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PromptError(f"{where} is not JSON: {first_line(error)}") from error


def _svamp(task: str, number: int, record: dict[str, Any]) -> Problem:
    """Return a problem of arXiv 2103.07191."""
    name, body = str(record["ID"]), str(record["Body"]).strip()
    return Problem(
        id=f"{task}/{name}",
        task=task,
        level=str(record.get("Type", task)).lower(),
        subject=name,
        text=f"{body if body.endswith(('.', '?', '!')) else body + '.'} {record['Question']}",
        answers=(f"{float(record['Answer']):g}",),
        rule="number",
    )


def _gsm8k(task: str, number: int, record: dict[str, Any]) -> Problem:
    """Return a problem of arXiv 2110.14168: the number after ``####`` counts.

    A worked example shows the whole solution on one line, without its calculator notes.
    """
    solution, mark, final = str(record["answer"]).rpartition("####")
    if not mark:
        raise PromptError("the answer has no line that begins with ####")
    parts = [part.partition(">>")[2] for part in ("<<>>" + solution).split("<<")[1:]]
    shown = " ".join("".join(parts).split())
    return Problem(
        id=f"{task}/{number}",
        task=task,
        level=task,
        subject=str(record["question"]),
        text=str(record["question"]),
        answers=(f"{shown} #### {final.strip()}",),
        rule="final",
    )


def _own(task: str, number: int, record: dict[str, Any]) -> Problem:
    record = old_names.of_question(record)
    for key in record:
        if key not in _KEYS:
            raise PromptError(f"unknown key {brief(key)}; known: {', '.join(_KEYS)}")
    given, text = record["answer"], record["question"]
    answers = tuple(_answer(value) for value in (given if isinstance(given, list) else [given]))
    if not isinstance(text, str) or not text.strip() or not answers:
        raise PromptError(_SHAPE)
    rule = record.get("rule", "exact")
    grading.check_rule(rule, answers)
    return Problem(
        id=f"{task}/{record.get('id', number)}",
        task=task,
        level=str(record.get("level", task)),
        subject=text,
        text=text,
        answers=answers,
        rule=rule,
    )


def _answer(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)) or value == "":
        raise PromptError(f"an answer is a text or a number, not {brief(value)}")
    return value if isinstance(value, str) else f"{value:.15g}"


FORMATS: dict[str, Callable[[str, int, dict[str, Any]], Problem]] = {
    "svamp": _svamp,
    "gsm8k": _gsm8k,
}
"""Readers of the records of published files, by name."""
