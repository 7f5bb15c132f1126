"""Rows: what was extracted from each document, and how sure each field is."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomlkit

from entropix_mlx import limits

from ..errors import OutputError, ProfileError
from ..files import write_whole, writing
from ..palette import to_json
from ..records import parse_toml

OWN = ("document", "unsure", "reviewed", "error")
"""Columns of a CSV file that are no fields; a field of such a name is written as
``fields.NAME``."""


@dataclass(frozen=True)
class Row:
    """The fields of one document; those of objects inside it are named ``outer/inner``."""

    document: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Texts, numbers, true, false, null and lists."""
    confidence: Mapping[str, float] = field(default_factory=dict)
    """The probability of each field's value given what the schema allows; of a list, the smallest
    of its values'."""
    unsure: tuple[str, ...] = ()
    """Fields whose confidence is below their threshold, or that have none."""
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
            "reviewed": list(self.reviewed),
        }


def row_of(
    document: str,
    record: Mapping[str, Any],
    thresholds: Mapping[str, float],
    otherwise: float = 0.0,
) -> Row:
    """Return the row of an answer, which is a line of a file of answers.

    Args:
        thresholds: the least confidence of the fields that have one.
        otherwise: that of all others.
    """
    if "error" in record:
        return Row(document, error=record["error"])
    if record["finish_reason"] == "length":
        return Row(document, error="the answer was cut off: allow more by --max-tokens")
    values = flattened(json.loads(record["text"]))
    sure = {name: _confidence(name, record["fields"]) for name in values}
    names = dict.fromkeys([*values, *thresholds])
    unsure = [n for n in names if not sure.get(n, -1.0) >= thresholds.get(n, otherwise)]
    return Row(document, values, sure, tuple(unsure))


def flattened(value: Any, name: str = "") -> dict[str, Any]:
    """Return the fields of a JSON value by name; those of an object inside as ``outer/inner``."""
    if not isinstance(value, dict):
        return {name or "value": value}
    found: dict[str, Any] = {}
    for key, one in value.items():
        found |= flattened(one, f"{name}/{key}" if name else key)
    return found


def _confidence(name: str, fields: Sequence[Mapping[str, Any]]) -> float:
    """Return the smallest probability among the values at or below a pointer."""
    pointer = "" if name == "value" else f"/{name}"
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
    titles = {name: f"fields.{name}" if name in OWN else name for name in names}
    header = [column for title in titles.values() for column in (title, f"{title}.confidence")]
    first, *last = OWN
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, [first, *header, *last], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        cells = {"document": row.document, "error": row.error}
        cells |= {"unsure": " ".join(row.unsure), "reviewed": " ".join(row.reviewed)}
        for name, value in row.fields.items():
            cells[titles[name]] = value if isinstance(value, str) else to_json(value)
            cells[f"{titles[name]}.confidence"] = f"{row.confidence[name]:.4f}"
        writer.writerow(cells)
    return text.getvalue()


def read_thresholds(path: str | Path) -> dict[str, float]:
    """Return the least confidence by field, as `write_thresholds` wrote it.

    Raises:
        ProfileError: the file cannot be read, or states something else.
    """
    text = limits.read_named(path, limits.PROFILE_BYTES, ProfileError)
    try:
        stated = parse_toml(text)["thresholds"]
        return {str(name): float(least) for name, least in stated.items()}
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ProfileError(
            f"{path} states no thresholds: write it with entropix calibrate --fields"
        ) from error


def write_thresholds(path: Path, thresholds: Mapping[str, float], risk: float, rows: int) -> None:
    """Write the least confidence by field; an infinite one says that no threshold keeps the risk.

    Raises:
        OutputError: it cannot be written.
    """
    content = tomlkit.dumps({"risk": risk, "rows": rows, "thresholds": dict(thresholds)})
    with writing(path, OutputError):
        write_whole(path, content)
