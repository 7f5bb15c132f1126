"""Going through unsure fields: what a person decides, kept as it is decided.

Each decision is a line of a file beside the rows; the last one about a field holds. So a review can
be left at any time, goes on where it was, and says who decided what.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from io import FileIO
from pathlib import Path
from typing import Any

from .. import limits
from ..errors import OutputError
from ..files import write_line, writing
from ..palette import to_json
from ..records import from_record
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
        self._decided: dict[tuple[str, str], FieldDecision] = {}
        self._order: list[tuple[str, str]] = []
        for decision in read_decisions(path):
            self._note(decision)

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
        if not self._order:
            return None
        last = self._decided[self._order[-1]]
        self._write(replace(last, how=How.UNDONE))
        return last

    def _doubt(self, number: int, row: Row, name: str) -> Doubt:
        value, text = row.fields[name], self._texts.get(row.document, "")
        candidates = tuple(self._candidates.get((row.document, name), ()))
        return Doubt(number, name, value, row.confidence[name], candidates, passage(value, text))

    def _write(self, decision: FieldDecision) -> None:
        with writing(self._path, OutputError), FileIO(self._path, "a") as file:
            write_line(file, to_json(asdict(decision)))
        self._note(decision)

    def _note(self, decision: FieldDecision) -> None:
        key = decision.document, decision.field
        self._decided.pop(key, None)
        self._order = [other for other in self._order if other != key]
        if decision.how is not How.UNDONE:
            self._decided[key] = decision
            self._order.append(key)


def passage(value: Any, text: str) -> tuple[int, int] | None:
    """Return where a value stands in a text, written alike but for case and white space."""
    words = (value if isinstance(value, str) else json.dumps(value)).split()
    if not words or isinstance(value, bool) or value is None:
        return None
    found = re.search(r"\s+".join(map(re.escape, words)), text, re.IGNORECASE)
    return found.span() if found else None


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
    latest = {(one.document, one.field): one for one in decisions}
    by_document: dict[str, list[FieldDecision]] = {}
    for one in latest.values():
        if one.how is not How.UNDONE:
            by_document.setdefault(one.document, []).append(one)
    return [_decided(row, by_document.get(row.document, [])) for row in rows]


def _decided(row: Row, decisions: Sequence[FieldDecision]) -> Row:
    values = {one.field: one.value for one in decisions if one.field in row.fields}
    left = tuple(name for name in row.unsure if name not in values)
    return replace(row, fields={**row.fields, **values}, unsure=left, reviewed=tuple(values))
