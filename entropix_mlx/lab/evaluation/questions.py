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
"""More of them than any rung has differ little, and fill a context."""
MOST_REPEATS = 200
"""So many drawn questions in a row that were asked before mean that a rung has no others."""


@dataclass(frozen=True)
class Question:
    """One question, and what counts as its answer."""

    id: str
    """``task/rung/subject``, and more where one subject is asked about in several ways."""
    task: str
    rung: str
    """The level of difficulty, or the kind of fact, within the task."""
    subject: str
    """What it is about; questions about one subject are in the same half."""
    text: str
    answers: tuple[str, ...]
    """The right answers; the first one is what a worked example shows."""
    rule: str
    """How an answer is graded: a key of `grading.RULES`."""
    examples: tuple[tuple[str, str], ...] = ()
    """Worked examples: a question and its answer each."""
    wording: int = 0
    """Which of several ways of asking; worked examples are asked in the same way."""

    @property
    def split(self) -> str:
        """The half that the question is in."""
        return FIT if _hash(f"{self.task}/{self.rung}/{self.subject}") % 2 else REPORT


Draw = Callable[[random.Random, Question | None], Question]
"""Draws one question of a rung, worded as another one if one is given."""


@dataclass(frozen=True)
class Wanted:
    """Which questions of a task are wanted."""

    limit: int | None = None
    """How many in all; None for as many as the task has, or `DEFAULT_LIMIT` where it has any
    number."""
    split: str = REPORT
    seed: int = 0
    """Of the choice of questions and of worked examples."""
    rungs: tuple[str, ...] = ()
    """Names of rungs; none for all."""
    examples: int = EXAMPLES

    def __post_init__(self) -> None:
        """Check what could make the drawing endless."""
        if not 0 <= self.examples <= MOST_EXAMPLES:
            raise SettingsError(
                f"examples must be between 0 and {MOST_EXAMPLES}, not {self.examples}"
            )

    def takes(self, question: Question) -> bool:
        """Tell whether a question is in the half that is wanted."""
        return self.split in (ALL, question.split)


def drawn(draw: Draw, rung: str, wanted: Wanted) -> Iterator[Question]:
    """Yield questions of a rung without end; each is drawn from the seed and its own number.

    None is repeated while there are others. After that, they come again with other examples, and
    with a number at the end of their ids.
    """
    seen: dict[str, int] = {}
    repeats = 0
    for number in range(2**62):
        question = draw(_random(wanted, rung, "question", number), None)
        if not wanted.takes(question):
            continue
        times = seen.get(question.id, 0)
        if times and repeats < MOST_REPEATS:
            repeats += 1
            continue
        seen[question.id] = times + 1
        if times:
            question = replace(question, id=f"{question.id}/{times + 1}")
        else:
            repeats = 0
        yield _with_drawn_examples(question, draw, wanted)


def listed(questions: Sequence[Question], wanted: Wanted) -> Iterator[Question]:
    """Yield the questions of a rung that has a list of them, in an order that the seed draws."""
    rung = questions[0].rung
    order = list(questions)
    _random(wanted, rung, "order", 0).shuffle(order)
    fit = [question for question in questions if question.split == FIT] or list(questions)

    for question in order:
        if wanted.takes(question):
            others = [other for other in fit if other.subject != question.subject]
            source = _random(wanted, rung, "examples", question.id)
            chosen = source.sample(others, min(wanted.examples, len(others)))
            yield replace(question, examples=tuple(_example(other) for other in chosen))


def interleaved(rungs: Sequence[Iterator[Question]], limit: int | None) -> list[Question]:
    """Return questions of several rungs, one of each in turn, until there are enough.

    With a higher limit, the same questions come first.
    """
    return list(islice(_in_turn(list(rungs)), limit))


def _in_turn(rungs: list[Iterator[Question]]) -> Iterator[Question]:
    while rungs:
        for rung in list(rungs):
            question = next(rung, None)
            if question is None:
                rungs.remove(rung)
            else:
                yield question


def _with_drawn_examples(question: Question, draw: Draw, wanted: Wanted) -> Question:
    """Draw worked examples of the same rung, all about other subjects than the question's."""
    source = _random(wanted, question.rung, "examples", question.id)
    found: list[Question] = []
    while len(found) < wanted.examples:
        example = draw(source, question)
        taken = {question.subject, *(other.subject for other in found)}
        if example.split == FIT and example.subject not in taken:
            found.append(example)
    return replace(question, examples=tuple(_example(example) for example in found))


def _example(question: Question) -> tuple[str, str]:
    return question.text, question.answers[0]


def _random(wanted: Wanted, rung: str, purpose: str, key: object) -> random.Random:
    return random.Random(_hash(f"{wanted.seed}/{rung}/{purpose}/{key}"))


def _hash(text: str) -> int:
    """Return a whole number that depends on the text alone, in every process and version."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
