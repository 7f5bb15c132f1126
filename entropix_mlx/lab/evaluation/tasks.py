"""The tasks by name: generated arithmetic and stories, facts of the package, files of questions."""

from __future__ import annotations

import itertools
import math
import random
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ...errors import OutputError, PromptError
from ...files import write_whole, writing
from ...notes.notes import Notes
from . import question_files
from .questions import ALL, REPORT, Draw, Problem, Selection, drawn, interleaved, listed

ARITHMETIC, SENTENCES, STORIES, FACTS, NOTES = (
    "arithmetic",
    "sentences",
    "stories",
    "facts",
    "notes",
)
DEFAULT_LIMIT = 200
"""Questions of a task that can have any number of them."""

Levels = Mapping[str, Callable[[Selection], Iterator[Problem]]]


def task_names() -> tuple[str, ...]:
    return (*_GENERATED, FACTS, *facts(), NOTES)


def problems_of(task: str, selection: Selection, split: str | None = None) -> list[Problem]:
    """Return the questions of a task.

    Args:
        task: a name from `task_names`, ``svamp=FILE``, ``gsm8k=FILE``, or a file of your own.
        selection: how many and which; its `split` does not matter.
        split: which half; None for the reported half of a task that comes with the package, and for
            all questions of a file.

    Raises:
        PromptError: there is no such task or level, or its file has a mistake.
    """
    levels = _levels(task)
    names: Sequence[str] = tuple(levels)
    if selection.levels and len(levels) > 1:
        names = [name for name in selection.levels if name in levels]
        if not names:
            raise PromptError(f"{task} has no such level; it has {', '.join(levels)}")
    selection = replace(selection, split=split or (REPORT if task in task_names() else ALL))
    limit = selection.limit or (DEFAULT_LIMIT if task in _GENERATED else None)
    found = interleaved([levels[name](selection) for name in names], limit)
    if not found:
        raise PromptError(f"no question of {task} is in these levels and this half")
    return found


def _levels(task: str) -> Levels:
    if task in _GENERATED:
        return _GENERATED[task]
    if task in facts():
        return _listed({task: facts()[task]})
    if task in (FACTS, NOTES):
        return _listed(facts() if task == FACTS else _noted_problems())
    name, _, file = task.partition("=")
    if name in question_files.FORMATS:
        if not file:
            raise PromptError(f"{name} needs its file: write {name}=FILE")
        return _listed(question_files.read_problems(name, file))
    if Path(task).suffix in (".jsonl", ".json"):
        return _listed(question_files.read_problems(Path(task).stem, task))
    known = ", ".join([*task_names(), *(f"{each}=FILE" for each in question_files.FORMATS)])
    raise PromptError(f"no task {task!r}: use {known}, or a .jsonl file of yours")


def _listed(problems: Mapping[str, Sequence[Problem]]) -> Levels:
    return {level: partial(listed, questions) for level, questions in problems.items()}


# Arithmetic: from counting on to products of two digits.

Operands = Callable[[random.Random], tuple[int, ...]]


def _pair(low: int, high: int, low2: int | None = None, high2: int | None = None) -> Operands:
    """Return what draws two whole numbers, the second from its own range where it has one."""
    second = (low if low2 is None else low2, high if high2 is None else high2)
    return lambda source: (source.randint(low, high), source.randint(*second))


def _larger_first(low: int, high: int) -> Operands:
    draw = _pair(low, high)
    return lambda source: tuple(sorted(draw(source), reverse=True))


def _consecutive(source: random.Random) -> tuple[int, ...]:
    first = source.randint(1, 996)
    return first, first + 1, first + 2


def _one(source: random.Random) -> tuple[int, ...]:
    return (source.randint(10, 998),)


def _successor(numbers: tuple[int, ...]) -> int:
    return numbers[-1] + 1


def _difference(numbers: tuple[int, ...]) -> int:
    return numbers[0] - numbers[1]


ARITHMETIC_LEVELS: dict[str, tuple[Operands, Callable[[tuple[int, ...]], int], str]] = {
    "count": (_consecutive, _successor, "count"),
    "after": (_one, _successor, "after"),
    "plus1": (_pair(10, 998, 1, 1), sum, "add"),
    "add1": (_pair(1, 9), sum, "add"),
    "mul1": (_pair(2, 9), math.prod, "multiply"),
    "sub18": (_larger_first(1, 18), _difference, "subtract"),
    "add2": (_pair(10, 99), sum, "add"),
    "sub2": (_larger_first(10, 99), _difference, "subtract"),
    "mul21": (_pair(10, 99, 2, 9), math.prod, "multiply"),
}
"""By name: how operands are drawn, what the answer is, and the key of the wordings."""


def _arithmetic(task: str, level: str, rule: str) -> Draw:
    operands, solve, key = ARITHMETIC_LEVELS[level]

    def draw(source: random.Random, like: Problem | None) -> Problem:
        wordings = _toml("generated.toml")["wordings"][key]
        numbers = operands(source)
        wording = source.randrange(len(wordings)) if like is None else like.wording
        return Problem(
            id=f"{task}/{level}/{','.join(map(str, numbers))}/{wording}",
            task=task,
            level=level,
            # 3 + 4 and 4 + 3 are about the same thing.
            subject=",".join(map(str, sorted(numbers))),
            text=wordings[wording].format(*numbers),
            answers=(str(solve(numbers)),),
            rule=rule,
            wording=wording,
        )

    return draw


# Stories: problems whose answers in a chat are a sentence or two.


def _story(level: str) -> Draw:
    def draw(source: random.Random, like: Problem | None) -> Problem:
        words = _toml("generated.toml")["stories"]
        form = words["levels"][level]
        a, b = source.randint(2, 9), source.randint(2, 9)
        numbers = {"a": a, "b": b, "sum": a + b, "product": a * b}
        name, things = source.choice(words["names"]), source.choice(words["things"])
        return Problem(
            id=f"{STORIES}/{level}/{name}-{things}-{a}-{b}",
            task=STORIES,
            level=level,
            subject=",".join(map(str, sorted((a, b)))),
            text=form["question"].format(name=name, things=things, **numbers),
            answers=(str(numbers[form["answer"]]),),
            rule="last",
        )

    return draw


_GENERATED: dict[str, Levels] = {
    ARITHMETIC: {
        level: partial(drawn, _arithmetic(ARITHMETIC, level, "number"), level)
        for level in ARITHMETIC_LEVELS
    },
    SENTENCES: {
        level: partial(drawn, _arithmetic(SENTENCES, level, "last"), level)
        for level in ("add1", "mul1", "sub18")
    },
    STORIES: {
        level: partial(drawn, _story(level), level) for level in ("gains", "gives", "loses", "bags")
    },
}
"""Tasks that can have any number of questions. `SENTENCES` are sums whose answers in a chat without
worked examples are sentences, of which the last number counts."""


# Facts: capitals, chemical symbols, currencies and more.


@cache
def facts() -> dict[str, tuple[Problem, ...]]:
    """Return the questions of ``facts.toml`` by their kind; each kind is a task of its own, too."""
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
        for kind, table in _toml("facts.toml").items()
    }


# Notes: questions that a folder of notes answers. Half of them are about invented facts, which no
# model can know; the other half about well-known ones, so that retrieving everything costs more
# than it brings. Graded is the first line of what the model itself wrote, not a quoted passage.

INVENTED, KNOWN = "invented", "known"
_Noted = tuple[Problem, str]
"""A question, and the passage that answers it."""


@contextmanager
def own_notes() -> Iterator[Notes]:
    """Yield the notes of the task `NOTES`, in a folder that exists meanwhile."""
    with TemporaryDirectory() as folder, TemporaryDirectory() as cached:
        write_notes(Path(folder))
        yield Notes(folder, cache=Path(cached))


def write_notes(folder: Path) -> None:
    """Write the notes that answer all questions of the task: a Markdown file for each kind.

    Raises:
        OutputError: they cannot be written.
    """
    texts: dict[str, list[str]] = {}
    for problem, passage in itertools.chain(*_noted().values()):
        texts.setdefault(problem.id.split("/")[2], []).append(passage)
    with writing(folder, OutputError):
        for name, passages in texts.items():
            write_whole(folder / f"{name}.md", "\n\n".join(passages) + "\n")


def _noted_problems() -> dict[str, list[Problem]]:
    return {level: [problem for problem, _ in pairs] for level, pairs in _noted().items()}


@cache
def _noted() -> dict[str, list[_Noted]]:
    """Return the questions by their level, always the same ones."""
    tables = _toml("notes.toml")
    return {
        INVENTED: list(_invented(tables[INVENTED])),
        KNOWN: [
            _with_passage(KNOWN, kind, replace(fact, rule="contains"), form, number)
            for kind, form in tables[KNOWN].items()
            for number, fact in enumerate(facts()[kind])
        ],
    }


def _invented(table: dict[str, Any]) -> Iterator[_Noted]:
    villages = [a + b for a, b in itertools.product(table["first"], table["last"])]
    people = [" ".join(pair) for pair in itertools.product(table["given"], table["family"])]
    source = random.Random("notes")
    source.shuffle(villages)
    for kind, form in enumerate(table["forms"]):
        for number, village in enumerate(villages):
            text, answers = form["question"].format(village), (source.choice(people),)
            problem = Problem("", NOTES, INVENTED, village, text, answers, "contains")
            yield _with_passage(INVENTED, f"places-{kind}", problem, form, number)


def _with_passage(
    level: str, kind: str, problem: Problem, form: dict[str, Any], number: int
) -> _Noted:
    """Return a question as one of `NOTES`, and the passage that states its first answer."""
    subject = problem.subject
    noted = replace(
        problem,
        id=f"{NOTES}/{level}/{kind}/{subject}",
        task=NOTES,
        level=level,
        subject=f"{kind}/{subject}",
    )
    more = " ".join(form["more"][number % 2 :])
    return noted, f"{form['note'].format(subject, problem.answers[0])} {more}"


@cache
def _toml(name: str) -> dict[str, Any]:
    file = resources.files(__package__) / name
    return tomllib.loads(file.read_text(encoding="utf-8"))
