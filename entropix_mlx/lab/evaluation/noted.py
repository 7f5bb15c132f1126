"""The task `notes`: questions whose answers stand in a folder of notes.

Half of the questions are about invented facts, which no model can know; the other half about
well-known ones, so that looking everything up costs more than it gains. The folder says all of
them. What counts is whether the right answer is in the first line of what the model itself wrote: a
quoted passage does not count.
"""

from __future__ import annotations

import functools
import itertools
import random
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ...errors import OutputError
from ...files import write_whole, writing
from ...notes.notes import Notes
from . import facts
from .questions import Question, Wanted, listed

NAME = "notes"
INVENTED, KNOWN = "invented", "known"
RUNGS = (INVENTED, KNOWN)


def rungs(wanted: Wanted) -> list[Iterator[Question]]:
    """Return the questions of each rung that is wanted."""
    made = {INVENTED: _invented, KNOWN: _known}
    names = wanted.rungs or RUNGS
    return [
        listed([question for question, _ in made[name]()], wanted) for name in names if name in made
    ]


def write(folder: Path) -> None:
    """Write the notes that answer all questions of the task: a Markdown file for each kind.

    Raises:
        OutputError: they cannot be written.
    """
    texts: dict[str, list[str]] = {}
    for question, passage in [*_invented(), *_known()]:
        texts.setdefault(question.id.split("/")[2], []).append(passage)
    with writing(folder, OutputError):
        for name, passages in texts.items():
            write_whole(folder / f"{name}.md", "\n\n".join(passages) + "\n")


@contextmanager
def own_notes() -> Iterator[Notes]:
    """Yield the notes of the task, in a folder that is there meanwhile."""
    with TemporaryDirectory() as folder, TemporaryDirectory() as cache:
        write(Path(folder))
        yield Notes(folder, cache=Path(cache))


@functools.cache
def _tables() -> dict[str, Any]:
    file = resources.files(__package__) / "noted.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"))


@functools.cache
def _invented() -> list[tuple[Question, str]]:
    """Return the invented facts, always the same, each with the passage that says it."""
    table = _tables()[INVENTED]
    places = [a + b for a, b in itertools.product(table["first"], table["last"])]
    people = [" ".join(pair) for pair in itertools.product(table["given"], table["family"])]
    source = random.Random(NAME)
    source.shuffle(places)
    found = []
    for kind, form in enumerate(table["forms"]):
        for number, place in enumerate(places):
            answer = source.choice(people)
            question = _question(INVENTED, f"places-{kind}", place, form["question"].format(place))
            found.append(_with_passage(question, answer, (answer,), form, number))
    return found


@functools.cache
def _known() -> list[tuple[Question, str]]:
    found = []
    for kind, form in _tables()[KNOWN].items():
        for number, fact in enumerate(facts.kinds()[kind]):
            question = _question(KNOWN, kind, fact.subject, fact.text)
            found.append(_with_passage(question, fact.answers[0], fact.answers, form, number))
    return found


def _question(rung: str, kind: str, subject: str, text: str) -> Question:
    name = f"{NAME}/{rung}/{kind}/{subject}"
    return Question(name, NAME, rung, f"{kind}/{subject}", text, (), "contains")


def _with_passage(
    question: Question, answer: str, answers: tuple[str, ...], form: dict[str, Any], number: int
) -> tuple[Question, str]:
    """Return a question with its answers, and the passage of the notes that gives the first."""
    subject = question.subject.partition("/")[2]
    more = " ".join(form["more"][number % 2 :])
    passage = f"{form['note'].format(subject, answer)} {more}"
    return replace(question, answers=answers), passage
