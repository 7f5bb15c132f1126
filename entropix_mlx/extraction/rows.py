"""Rows: what was extracted from each document, and how sure each field is."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..constraints.fields import escaped
from ..errors import OutputError
from ..files import write_whole, writing
from ..records import to_json
from .documents import Document, passage
from .task import Example

OWN = ("document", "unsure", "copied", "reviewed", "error")
"""Columns of a CSV file that are no fields."""
ROUNDING = 1e-9
_WHOLE = "value"
"""The field of an answer that is no object."""
_FORMULA = re.compile(r"[=+\-@\t\n](?![\d.,]*$)")
"""How a text begins that a spreadsheet would run; not a number with its sign."""


@dataclass(frozen=True)
class Row:
    """The fields of one document, by their JSON pointers without the first slash.

    A field of an object inside it is ``outer/inner``; an answer that is no object is ``value``.
    """

    document: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Texts, numbers, true, false, null and lists."""
    confidence: Mapping[str, float] = field(default_factory=dict)
    """The probability of each field's value given what the schema allows; of a list, the smallest
    of its values'."""
    unsure: tuple[str, ...] = ()
    """Fields that are to be reviewed."""
    copied: tuple[str, ...] = ()
    """Fields whose value comes from a worked example instead of the document."""
    reviewed: tuple[str, ...] = ()
    """Fields that a person decided on."""
    error: str = ""
    """Why there are no fields; empty if there are."""

    def to_dict(self) -> dict[str, Any]:
        if self.error:
            return {"document": self.document, "error": self.error}
        return {
            "document": self.document,
            "fields": dict(self.fields),
            "confidence": dict(self.confidence),
            "unsure": list(self.unsure),
            "copied": list(self.copied),
            "reviewed": list(self.reviewed),
        }


def row_of(
    document: Document,
    record: Mapping[str, Any],
    schema: Mapping[str, Any] | None = None,
    examples: Sequence[Example] = (),
) -> Row:
    """Return the row of an answer, which is a line of a file of answers.

    Args:
        schema: whose properties the fields are; None takes all of the answer's. Where it lists
            none, the whole answer is one field.
        examples: which the model was shown.
    """
    if "error" in record:
        return Row(document.name, error=record["error"])
    if record["finish_reason"] == "length":
        return Row(document.name, error="the answer was cut off: allow more by --max-tokens")
    known = None if schema is None else _listed(schema)
    values = flattened(json.loads(record["text"]), known)
    sure = {name: _confidence(name, record["fields"]) for name in values}
    return Row(document.name, values, sure, copied=_copied(values, document.text, examples))


def with_unsure(rows: Sequence[Row], share: float) -> list[Row]:
    """Return rows in which a share of all their fields, rounded up, is unsure.

    Fields that were copied from an example come first, then those of the least confidence.
    """
    ranked = sorted(
        (name not in row.copied, -1.0 if math.isnan(sure) else sure, number, name)
        for number, row in enumerate(rows)
        for name, sure in row.confidence.items()
    )
    chosen = {place[2:] for place in ranked[: math.ceil(share * len(ranked) - ROUNDING)]}
    return [
        replace(row, unsure=tuple(name for name in row.fields if (number, name) in chosen))
        for number, row in enumerate(rows)
    ]


def _copied(values: Mapping[str, Any], text: str, examples: Sequence[Example]) -> tuple[str, ...]:
    """Return the fields whose value stands in the text of an example, and not in this one."""
    shown = {
        (name, to_json(value))
        for example in examples
        for name, value in flattened(example.fields).items()
        if passage(value, example.text)
    }
    return tuple(
        name
        for name, value in values.items()
        if (name, to_json(value)) in shown and not passage(value, text)
    )


def flattened(value: Any, known: Set[str] | None = None, pointer: str = "") -> dict[str, Any]:
    """Return the fields of a JSON value that have `known` names, None being all, as in a `Row`."""
    if not isinstance(value, dict) or (known is not None and not known):
        return {pointer[1:] if pointer else _WHOLE: value}
    found: dict[str, Any] = {}
    for key, one in value.items():
        if known is None or key in known:
            found |= flattened(one, known, f"{pointer}/{escaped(key)}")
    return found


def _listed(schema: Any) -> set[str]:
    """Return the names of all properties that a schema lists, wherever in it."""
    if isinstance(schema, list):
        return set().union(*map(_listed, schema))
    if not isinstance(schema, Mapping):
        return set()
    properties = schema.get("properties")
    names = set(properties) if isinstance(properties, Mapping) else set()
    return names.union(*map(_listed, schema.values()))


def _confidence(name: str, fields: Sequence[Mapping[str, Any]]) -> float:
    """Return the smallest probability among the values at or below a pointer."""
    pointer = "" if name == _WHOLE else f"/{name}"
    inside = (one for one in fields if f"{one['pointer']}/".startswith(f"{pointer}/"))
    return min((one["probability"] for one in inside), default=math.nan)


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write rows as JSON Lines or, where the name ends with .csv, as CSV.

    Raises:
        OutputError: the file cannot be written.
    """
    as_csv = path.suffix.lower() == ".csv"
    text = _csv(rows) if as_csv else "".join(f"{to_json(row.to_dict())}\n" for row in rows)
    with writing(path, OutputError):
        write_whole(path, text)


def _csv(rows: Sequence[Row]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row.fields))
    titles = {name: _title(name) for name in names}
    header = [column for title in titles.values() for column in (title, f"{title}.confidence")]
    first, *last = OWN
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, [first, *header, *last], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        cells = {"document": _cell(row.document), "error": row.error}
        cells |= {
            column: _cell(" ".join(getattr(row, column)))
            for column in ("unsure", "copied", "reviewed")
        }
        for name, value in row.fields.items():
            cells[titles[name]] = _cell(value) if isinstance(value, str) else to_json(value)
            cells[f"{titles[name]}.confidence"] = f"{row.confidence[name]:.4f}"
        writer.writerow(cells)
    return text.getvalue()


def _title(name: str) -> str:
    """Return the column of a field, which no other field's is: ``NAME`` or ``fields.NAME``."""
    taken = name in OWN or not name or name.startswith("fields.") or name.endswith(".confidence")
    return f"fields.{name}" if taken else _cell(name)


def _cell(text: str) -> str:
    """Return a text as a cell: an apostrophe stands before what a spreadsheet would run."""
    text = text.replace("\r", "\n")  # which the module csv does not put into quotation marks
    return f"'{text}" if _FORMULA.match(text) else text
