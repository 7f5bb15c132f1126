"""Short facts that come with the package: capitals, chemical symbols, currencies and more."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterator
from importlib import resources

from .questions import Question, Wanted, listed

NAME = "facts"


@functools.cache
def kinds() -> dict[str, tuple[Question, ...]]:
    """Return the questions of ``facts.toml`` by their kind."""
    file = resources.files(__package__) / "facts.toml"
    tables = tomllib.loads(file.read_text(encoding="utf-8"))
    return {
        kind: tuple(
            Question(
                id=f"{NAME}/{kind}/{subject}",
                task=NAME,
                rung=kind,
                subject=subject,
                text=table["question"].format(subject),
                answers=tuple(answer.split(" | ")),
                rule=table.get("rule", "exact"),
            )
            for subject, answer in table["answers"].items()
        )
        for kind, table in tables.items()
    }


def rungs(wanted: Wanted) -> list[Iterator[Question]]:
    """Return the questions of each kind that is wanted."""
    names = wanted.rungs or tuple(kinds())
    return [listed(kinds()[name], wanted) for name in names if name in kinds()]
