"""Questions with known answers: generated arithmetic, facts of the package, files of your own.

Every task is cut into two halves by a hash of what a question is about (the operands of a sum, the
country of a capital): the *fit* half may be tuned on, the *report* half only reported. Worked
examples always come from the fit half, so no reported answer is ever seen in a prompt.

A line of your own is a JSON object with ``question``, ``answer`` (a text, a number, or a list of
them) and, where it is not "exact", ``rule``: how to grade, a key of `grading.RULES`. It may have
``id`` and ``level``. Worked examples are drawn from the questions of the same level.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import random
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from .. import limits
from ..errors import PromptError, SettingsError
from ..records import explained
from . import grading

ARITHMETIC, FACTS = "arithmetic", "facts"
FIT, REPORT, ALL = "fit", "report", "all"
EXAMPLES = 2
"""Worked examples before a question, unless the caller says otherwise."""
MOST_EXAMPLES = 64
"""More of them than any level has differ little, and fill a context."""
DEFAULT_LIMIT = 200
"""Questions of arithmetic, which can have any number of them."""
MOST_REPEATS = 200
"""So many repeated draws in a row show that a level has no other questions."""


@dataclass(frozen=True)
class Problem:
    """One question, and what counts as its answer."""

    id: str
    """``task/level/subject``, and more where a subject has several questions."""
    task: str
    level: str
    """The level of difficulty, or the kind of fact, within the task."""
    subject: str
    """What it is about; questions about one subject are in the same half."""
    text: str
    answers: tuple[str, ...]
    """The right answers; the first one is what a worked example shows."""
    rule: str
    """A key of `grading.RULES`."""
    examples: tuple[tuple[str, str], ...] = ()
    """Worked examples: a question and its answer each."""
    wording: int = 0
    """Which of several wordings; worked examples have the same."""

    @property
    def level_name(self) -> str:
        return self.level if self.level == self.task else f"{self.task}/{self.level}"

    @property
    def split(self) -> str:
        return FIT if _hash(f"{self.task}/{self.level}/{self.subject}") % 2 else REPORT


@dataclass(frozen=True)
class Selection:
    """Which questions of a task, and with how many worked examples."""

    limit: int | None = None
    """None for all that the task has, or `DEFAULT_LIMIT` of arithmetic."""
    split: str = REPORT
    seed: int = 0
    examples: int = EXAMPLES

    def __post_init__(self) -> None:
        if not 0 <= self.examples <= MOST_EXAMPLES:
            raise SettingsError(
                f"examples must be between 0 and {MOST_EXAMPLES}, not {self.examples}"
            )

    def includes(self, problem: Problem) -> bool:
        return self.split in (ALL, problem.split)

    def random(self, level: str, purpose: str, key: object) -> random.Random:
        return random.Random(_hash(f"{self.seed}/{level}/{purpose}/{key}"))


def problems_of(task: str, selection: Selection) -> list[Problem]:
    """Return the questions of a task, one of each level in turn.

    With a higher limit, the same questions come first.

    Args:
        task: ``arithmetic``, ``facts``, one kind of facts such as ``capitals``, or a ``.jsonl``
            file of your own.
        selection: how many and which.

    Raises:
        PromptError: there is no such task, or its file has a mistake.
    """
    limit = selection.limit
    if task == ARITHMETIC:
        levels = [_drawn(level, selection) for level in ARITHMETIC_LEVELS]
        limit = limit or DEFAULT_LIMIT
    else:
        levels = [_listed(problems, selection) for problems in _lists(task)]
    found = list(itertools.islice(_in_turn(levels), limit))
    if not found:
        raise PromptError(f"no question of {task} is in this half")
    return found


def _lists(task: str) -> list[Sequence[Problem]]:
    """Return the questions of a task that has a list of them, by their levels."""
    if task == FACTS:
        return list(facts().values())
    if task in facts():
        return [facts()[task]]
    if Path(task).suffix == ".jsonl":
        return read_problems(Path(task))
    known = ", ".join((ARITHMETIC, FACTS, *facts()))
    raise PromptError(f"no task {task!r}: use {known}, or a .jsonl file of yours")


def _in_turn(levels: list[Iterator[Problem]]) -> Iterator[Problem]:
    while levels:
        for level in list(levels):
            problem = next(level, None)
            if problem is None:
                levels.remove(level)
            else:
                yield problem


def _listed(problems: Sequence[Problem], selection: Selection) -> Iterator[Problem]:
    """Yield the questions of a level in an order that the seed draws."""
    level = problems[0].level
    order = list(problems)
    selection.random(level, "order", 0).shuffle(order)
    fit = [problem for problem in problems if problem.split == FIT] or list(problems)
    for problem in filter(selection.includes, order):
        others = [other for other in fit if other.subject != problem.subject]
        source = selection.random(level, "examples", problem.id)
        chosen = source.sample(others, min(selection.examples, len(others)))
        yield replace(problem, examples=tuple(map(_example, chosen)))


def _example(problem: Problem) -> tuple[str, str]:
    return problem.text, problem.answers[0]


# Arithmetic: from counting on to products of two digits.


COUNT = ("What comes next: {0}, {1}, {2}?", "Which number follows {0}, {1}, {2}?")
AFTER = ("What number comes after {0}?", "Which number follows {0}?")
ADD = ("What is {0} plus {1}?", "What is {0} + {1}?", "What is the sum of {0} and {1}?")
SUBTRACT = ("What is {0} minus {1}?", "What is {0} - {1}?")
MULTIPLY = ("What is {0} times {1}?", "What is {0} * {1}?", "What is the product of {0} and {1}?")


class ArithmeticLevel(NamedTuple):
    """A level of arithmetic."""

    ranges: tuple[tuple[int, int], ...]
    """Of each operand: the least and the largest."""
    solve: Callable[[Sequence[int]], int]
    wordings: tuple[str, ...]
    larger_first: bool = False


def _successor(numbers: Sequence[int]) -> int:
    return numbers[-1] + 1


def _difference(numbers: Sequence[int]) -> int:
    return numbers[0] - numbers[1]


ARITHMETIC_LEVELS = {
    "count": ArithmeticLevel(
        ((1, 996),), _successor, COUNT
    ),  # the next two numbers stand behind the operand
    "after": ArithmeticLevel(((10, 998),), _successor, AFTER),
    "plus1": ArithmeticLevel(((10, 998), (1, 1)), sum, ADD),
    "add1": ArithmeticLevel(((1, 9), (1, 9)), sum, ADD),
    "mul1": ArithmeticLevel(((2, 9), (2, 9)), math.prod, MULTIPLY),
    "sub18": ArithmeticLevel(((1, 18), (1, 18)), _difference, SUBTRACT, larger_first=True),
    "add2": ArithmeticLevel(((10, 99), (10, 99)), sum, ADD),
    "sub2": ArithmeticLevel(((10, 99), (10, 99)), _difference, SUBTRACT, larger_first=True),
    "mul21": ArithmeticLevel(((10, 99), (2, 9)), math.prod, MULTIPLY),
}


def _draw(level: str, source: random.Random, like: Problem | None = None) -> Problem:
    """Draw one question of a level, worded as another one if one is given."""
    ranges, solve, wordings, larger_first = ARITHMETIC_LEVELS[level]
    numbers = [source.randint(*bounds) for bounds in ranges]
    if larger_first:
        numbers.sort(reverse=True)
    if level == "count":
        numbers += [numbers[0] + 1, numbers[0] + 2]
    wording = source.randrange(len(wordings)) if like is None else like.wording
    return Problem(
        id=f"{ARITHMETIC}/{level}/{','.join(map(str, numbers))}/{wording}",
        task=ARITHMETIC,
        level=level,
        subject=",".join(map(str, sorted(numbers))),  # 3 + 4 and 4 + 3 are about the same thing
        text=wordings[wording].format(*numbers),
        answers=(str(solve(numbers)),),
        rule="number",
        wording=wording,
    )


def _drawn(level: str, selection: Selection) -> Iterator[Problem]:
    """Yield different questions of a level; each is drawn from the seed and its own number."""
    seen: set[str] = set()
    repeats = 0
    for number in itertools.count():
        problem = _draw(level, selection.random(level, "question", number))
        if not selection.includes(problem):
            continue
        repeats = repeats + 1 if problem.id in seen else 0
        if repeats > MOST_REPEATS:
            return
        if not repeats:
            seen.add(problem.id)
            yield _with_drawn_examples(problem, selection)


def _with_drawn_examples(problem: Problem, selection: Selection) -> Problem:
    """Draw worked examples of the same level, all about other subjects than the question's."""
    source = selection.random(problem.level, "examples", problem.id)
    found: list[Problem] = []
    while len(found) < selection.examples:
        example = _draw(problem.level, source, problem)
        taken = {problem.subject, *(other.subject for other in found)}
        if example.split == FIT and example.subject not in taken:
            found.append(example)
    return replace(problem, examples=tuple(map(_example, found)))


# Facts, and files of your own.


@cache
def facts() -> dict[str, tuple[Problem, ...]]:
    """Return the questions of ``facts.toml`` by their kind; each kind is a task of its own, too."""
    file = resources.files(__package__) / "facts.toml"
    return {
        kind: tuple(
            Problem(
                id=f"{FACTS}/{kind}/{subject}",
                task=FACTS,
                level=kind,
                subject=subject,
                text=table["question"].format(subject),
                answers=tuple(answer.split(" | ")),
                rule=table.get("rule", "exact"),
            )
            for subject, answer in table["answers"].items()
        )
        for kind, table in tomllib.loads(file.read_text(encoding="utf-8")).items()
    }


Text = Annotated[str, Field(min_length=1)]


class QuestionLine(BaseModel):
    """A line of a file of your own."""

    model_config = ConfigDict(extra="forbid")

    question: Text
    answer: Text | FiniteFloat | Annotated[list[Text | FiniteFloat], Field(min_length=1)]
    rule: str = "exact"
    id: str | int | None = None
    level: str | int | None = None

    @property
    def answers(self) -> tuple[str, ...]:
        given = self.answer if isinstance(self.answer, list) else [self.answer]
        return tuple(one if isinstance(one, str) else f"{one:.15g}" for one in given)


def read_problems(path: Path) -> list[Sequence[Problem]]:
    """Return the questions of a file by their level.

    Raises:
        PromptError: the file cannot be read, or has a mistake; the message names its line.
    """
    levels: dict[str, list[Problem]] = {}
    ids = set()
    text = limits.read_named(path, limits.PROMPTS_BYTES, PromptError)
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            problem = _own(path.stem, number, QuestionLine.model_validate_json(line))
        except ValidationError as error:
            raise PromptError(f"{path}, line {number}: {explained(error)}") from error
        except PromptError as error:
            raise PromptError(f"{path}, line {number}: {error}") from error
        if problem.id in ids:
            raise PromptError(f"{path}, line {number}: another question has the id {problem.id!r}")
        ids.add(problem.id)
        levels.setdefault(problem.level, []).append(problem)
    if not levels:
        raise PromptError(f"{path} has no questions: write a JSON object a line")
    return list(levels.values())


def _own(task: str, number: int, line: QuestionLine) -> Problem:
    grading.check_rule(line.rule, line.answers)
    name = number if line.id is None else line.id
    level = task if line.level is None else str(line.level)
    text = line.question
    return Problem(f"{task}/{name}", task, level, text, text, line.answers, line.rule)


def _hash(text: str) -> int:
    """Return a whole number that depends on the text alone, in every process and version."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
