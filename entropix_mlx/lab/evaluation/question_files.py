"""Questions from files: SVAMP, GSM8K, and JSON Lines of your own.

A line of your own is an object with ``question``, ``answer`` (a text, a number, or a list of them)
and, where it is not "exact", ``rule``: how to grade, a key of `grading.RULES`. It may have ``id``
and ``rung``. Worked examples are drawn from the questions of the same rung.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...errors import PromptError, brief, first_line
from . import grading
from .questions import Question, Wanted, listed

SVAMP, GSM8K = "svamp", "gsm8k"
_KEYS = ("question", "answer", "rule", "id", "rung")


def rungs(task: str, path: str | Path, wanted: Wanted) -> list[Iterator[Question]]:
    """Return the questions of each rung of a file.

    Args:
        task: `SVAMP` or `GSM8K`, or any other name for a file of your own.
        path: the file.
        wanted: which questions.

    Raises:
        PromptError: the file cannot be read, or has a mistake; the message names its line.
    """
    found: dict[str, list[Question]] = {}
    for question in _read(task, Path(path)):
        found.setdefault(question.rung, []).append(question)
    names = wanted.rungs or tuple(found)
    return [listed(found[name], wanted) for name in names if name in found]


def _read(task: str, path: Path) -> list[Question]:
    text = _text(path)
    records = _array(text, path) if text.lstrip().startswith("[") else _lines(text, path)
    make = {SVAMP: _svamp, GSM8K: _gsm8k}.get(task, _own)
    questions: dict[str, Question] = {}
    for number, record in records:
        where = f"{path}, question {number}"
        if not isinstance(record, dict):
            raise PromptError(f"{where}: write an object with question and answer")
        try:
            question = make(task, number, record)
        except KeyError as error:
            raise PromptError(f"{where} has no {error}") from None
        except PromptError as error:
            raise PromptError(f"{where}: {error}") from None
        if question.id in questions:
            raise PromptError(f"{where}: another question has the id {question.id!r}, too")
        questions[question.id] = question
    if not questions:
        raise PromptError(f"{path} has no questions: write a JSON object a line")
    return list(questions.values())


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PromptError(f"{path} is not a text in UTF-8: {error.reason}") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise PromptError(f"cannot read the questions in {path}: {reason}") from error


def _array(text: str, path: Path) -> list[tuple[int, Any]]:
    return list(enumerate(_parse(text, str(path)), 1))


def _lines(text: str, path: Path) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield number, _parse(line, f"{path}, line {number}")


def _parse(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PromptError(f"{where} is not JSON: {first_line(error)}") from error


def _svamp(task: str, number: int, record: dict[str, Any]) -> Question:
    """Return a problem of arXiv 2103.07191."""
    name, body = str(record["ID"]), str(record["Body"]).strip()
    return Question(
        id=f"{task}/{name}",
        task=task,
        rung=str(record.get("Type", task)).lower(),
        subject=name,
        text=f"{body if body.endswith(('.', '?', '!')) else body + '.'} {record['Question']}",
        answers=(f"{float(record['Answer']):g}",),
        rule="number",
    )


def _gsm8k(task: str, number: int, record: dict[str, Any]) -> Question:
    """Return a problem of arXiv 2110.14168: the number after ``####`` counts.

    A worked example shows the whole solution on one line, without its calculator notes.
    """
    solution, mark, final = str(record["answer"]).rpartition("####")
    if not mark:
        raise PromptError("the answer has no line that begins with ####")
    parts = [part.partition(">>")[2] for part in ("<<>>" + solution).split("<<")[1:]]
    shown = " ".join("".join(parts).split())
    return Question(
        id=f"{task}/{number}",
        task=task,
        rung=task,
        subject=str(record["question"]),
        text=str(record["question"]),
        answers=(f"{shown} #### {final.strip()}",),
        rule="final",
    )


def _own(task: str, number: int, record: dict[str, Any]) -> Question:
    for key in record:
        if key not in _KEYS:
            raise PromptError(f"unknown key {brief(key)}; known: {', '.join(_KEYS)}")
    given = record["answer"]
    answers = tuple(_answer(value) for value in (given if isinstance(given, list) else [given]))
    if not isinstance(record["question"], str) or not record["question"].strip() or not answers:
        raise PromptError("question must be a text, and answer a text, a number, or a list of them")
    rule = record.get("rule", "exact")
    grading.check_rule(rule, answers)
    return Question(
        id=f"{task}/{record.get('id', number)}",
        task=task,
        rung=str(record.get("rung", task)),
        subject=record["question"],
        text=record["question"],
        answers=answers,
        rule=rule,
    )


def _answer(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)) or value == "":
        raise PromptError(f"an answer is a text or a number, not {brief(value)}")
    return value if isinstance(value, str) else f"{value:.15g}"
