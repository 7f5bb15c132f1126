"""Going through unsure fields: what a person decides, kept as it is decided.

Each decision is a line of a file beside the rows; the last one about a field holds. So a review can
be left at any time, goes on where it was, and says who decided what.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from io import FileIO
from pathlib import Path
from typing import Any

from .. import limits
from ..errors import OutputError
from ..files import write_line, writing
from ..records import from_record, to_json
from .documents import passage
from .rows import Row


class How(StrEnum):
    """How a person decided on a field."""

    ACCEPTED = "accepted"
    TYPED = "typed"
    UNDONE = "undone"


@dataclass(frozen=True)
class FieldDecision:
    """A line of the file: the value that a field is to have."""

    document: str
    field: str
    value: Any
    how: How


Decided = dict[tuple[str, str], FieldDecision]
"""The decisions that hold, by document and field, in the order in which they were taken."""


@dataclass(frozen=True)
class Doubt:
    """A field that is to be looked at."""

    row: int
    field: str
    value: Any
    confidence: float
    candidates: tuple[str, ...]
    """Other ways in which its text could have begun, the most probable first."""
    passage: tuple[int, int] | None
    """Where its value stands in the document; None where it does not."""
    copied: bool = False
    """Whether the value comes from a worked example."""


class Review:
    """The rows of an extraction, and what a person decided about them."""

    def __init__(
        self,
        rows: Sequence[Row],
        texts: Mapping[str, str],
        candidates: Mapping[tuple[str, str], Sequence[str]],
        path: Path,
    ) -> None:
        """Read what was decided before.

        Raises:
            OutputError: that file cannot be read, or holds something else.
        """
        self._rows = list(rows)
        self._texts = texts
        self._candidates = candidates
        self._path = path
        self._decided: Decided = {}
        for decision in read_decisions(path):
            _note(self._decided, decision)

    @property
    def doubts(self) -> list[Doubt]:
        """All unsure fields, the least sure ones first."""
        found = [
            self._doubt(number, row, name)
            for number, row in enumerate(self._rows)
            for name in row.unsure
            if name in row.fields
        ]
        return sorted(found, key=lambda doubt: doubt.confidence)

    def decision(self, doubt: Doubt) -> FieldDecision | None:
        return self._decided.get((self._rows[doubt.row].document, doubt.field))

    def text(self, doubt: Doubt) -> str:
        return self._texts.get(self._rows[doubt.row].document, "")

    def document(self, doubt: Doubt) -> str:
        return self._rows[doubt.row].document

    def decide(self, doubt: Doubt, value: Any) -> None:
        """Keep the value of a field: its own is accepted.

        Raises:
            OutputError: the decision cannot be written.
        """
        how = How.ACCEPTED if value == doubt.value else How.TYPED
        self._write(FieldDecision(self.document(doubt), doubt.field, value, how))

    def undo(self) -> FieldDecision | None:
        """Take the last decision back, and return it; None where there is none."""
        last = next(reversed(self._decided.values()), None)
        if last is not None:
            self._write(replace(last, how=How.UNDONE))
        return last

    def _doubt(self, number: int, row: Row, name: str) -> Doubt:
        value, text = row.fields[name], self._texts.get(row.document, "")
        candidates = tuple(self._candidates.get((row.document, name), ()))
        return Doubt(
            number,
            name,
            value,
            row.confidence[name],
            candidates,
            passage(value, text),
            name in row.copied,
        )

    def _write(self, decision: FieldDecision) -> None:
        with writing(self._path, OutputError), FileIO(self._path, "a") as file:
            write_line(file, to_json(asdict(decision)))
        _note(self._decided, decision)


def _note(decided: Decided, decision: FieldDecision) -> None:
    """Put a decision behind the others; one that is undone leaves."""
    key = decision.document, decision.field
    decided.pop(key, None)
    if decision.how is not How.UNDONE:
        decided[key] = decision


def read_decisions(path: Path) -> list[FieldDecision]:
    """Return the lines of a file of decisions; none if there is no file.

    Raises:
        OutputError: it cannot be read, or holds something else.
    """
    if not path.exists():
        return []
    found = []
    for number, line in limits.read_lines(path, limits.ANSWERS_BYTES, OutputError):
        try:
            found.append(from_record(FieldDecision, json.loads(line)))
        except (ValueError, RecursionError) as error:
            raise OutputError(
                f"{path}, line {number} is no decision about a field: move the file away"
            ) from error
    return found


def with_decisions(rows: Sequence[Row], decisions: Sequence[FieldDecision]) -> list[Row]:
    """Return rows in which people's decisions hold; these fields are no longer unsure."""
    decided: Decided = {}
    for decision in decisions:
        _note(decided, decision)
    return [_decided(row, decided) for row in rows]


def _decided(row: Row, decided: Decided) -> Row:
    values = {
        name: decided[row.document, name].value
        for name in row.fields
        if (row.document, name) in decided
    }
    left = tuple(name for name in row.unsure if name not in values)
    return replace(row, fields={**row.fields, **values}, unsure=left, reviewed=tuple(values))
