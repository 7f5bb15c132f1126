"""Questions with known answers, and how worked examples and halves are drawn for them.

Every task is cut into two halves by a hash of what a question is about (the operands of a sum, the
country of a capital): the *fit* half may be tuned on, the *report* half only reported. Worked
examples always come from the fit half, so no reported answer is ever seen in a prompt.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from ...errors import SettingsError

FIT, REPORT, ALL = "fit", "report", "all"
SPLITS = (REPORT, FIT, ALL)
EXAMPLES = 2
"""Worked examples before a question, unless the caller says otherwise."""
MOST_EXAMPLES = 64
"""More of them than any level has differ little, and fill a context."""
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
    def split(self) -> str:
        return FIT if _hash(f"{self.task}/{self.level}/{self.subject}") % 2 else REPORT


Draw = Callable[[random.Random, Problem | None], Problem]
"""Draws one question of a level, worded as another one if one is given."""


@dataclass(frozen=True)
class Selection:
    """Which questions of a task, and with how many worked examples."""

    limit: int | None = None
    """None for all that the task has, or `tasks.DEFAULT_LIMIT` where it has any number."""
    split: str = REPORT
    seed: int = 0
    levels: tuple[str, ...] = ()
    examples: int = EXAMPLES

    def __post_init__(self) -> None:
        if not 0 <= self.examples <= MOST_EXAMPLES:
            raise SettingsError(
                f"examples must be between 0 and {MOST_EXAMPLES}, not {self.examples}"
            )

    def includes(self, problem: Problem) -> bool:
        return self.split in (ALL, problem.split)


def drawn(draw: Draw, level: str, selection: Selection) -> Iterator[Problem]:
    """Yield questions of a level without end; each is drawn from the seed and its own number.

    None is repeated while there are others. After that, they come again with other examples, and
    with a number at the end of their ids.
    """
    seen: dict[str, int] = {}
    repeats = 0
    for number in range(2**62):
        problem = draw(_random(selection, level, "question", number), None)
        if not selection.includes(problem):
            continue
        times = seen.get(problem.id, 0)
        if times and repeats < MOST_REPEATS:
            repeats += 1
            continue
        seen[problem.id] = times + 1
        if times:
            problem = replace(problem, id=f"{problem.id}/{times + 1}")
        else:
            repeats = 0
        yield _with_drawn_examples(problem, draw, selection)


def listed(problems: Sequence[Problem], selection: Selection) -> Iterator[Problem]:
    """Yield the questions of a level that has a list of them, in an order that the seed draws."""
    level = problems[0].level
    order = list(problems)
    _random(selection, level, "order", 0).shuffle(order)
    fit = [problem for problem in problems if problem.split == FIT] or list(problems)

    for problem in order:
        if selection.includes(problem):
            others = [other for other in fit if other.subject != problem.subject]
            source = _random(selection, level, "examples", problem.id)
            chosen = source.sample(others, min(selection.examples, len(others)))
            yield replace(problem, examples=tuple(_example(other) for other in chosen))


def interleaved(levels: Sequence[Iterator[Problem]], limit: int | None) -> list[Problem]:
    """Return questions of several levels, one of each in turn, until there are enough.

    With a higher limit, the same questions come first.
    """
    return list(islice(_in_turn(list(levels)), limit))


def _in_turn(levels: list[Iterator[Problem]]) -> Iterator[Problem]:
    while levels:
        for level in list(levels):
            problem = next(level, None)
            if problem is None:
                levels.remove(level)
            else:
                yield problem


def _with_drawn_examples(problem: Problem, draw: Draw, selection: Selection) -> Problem:
    """Draw worked examples of the same level, all about other subjects than the question's."""
    source = _random(selection, problem.level, "examples", problem.id)
    found: list[Problem] = []
    while len(found) < selection.examples:
        example = draw(source, problem)
        taken = {problem.subject, *(other.subject for other in found)}
        if example.split == FIT and example.subject not in taken:
            found.append(example)
    return replace(problem, examples=tuple(_example(example) for example in found))


def _example(problem: Problem) -> tuple[str, str]:
    return problem.text, problem.answers[0]


def _random(selection: Selection, level: str, purpose: str, key: object) -> random.Random:
    return random.Random(_hash(f"{selection.seed}/{level}/{purpose}/{key}"))


def _hash(text: str) -> int:
    """Return a whole number that depends on the text alone, in every process and version."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
