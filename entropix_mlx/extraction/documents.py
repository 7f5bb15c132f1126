"""What fields are extracted from: files, or the texts of a column of a table."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import limits
from ..api.prompt_file import json_lines
from ..errors import PromptError
from ..files import expanded
from ..notes import Unreadable, pages

TABLES = (".csv", ".jsonl")


@dataclass(frozen=True)
class Document:
    """One text, and where it stands."""

    name: str
    """The file, or for a row of a table FILE:LINE."""
    text: str = ""
    error: str = ""
    """Why the text cannot be read; empty if it can."""


def read_documents(paths: Sequence[str | Path], column: str | None = None) -> list[Document]:
    """Return the texts of some files in their order, or those in a column of some tables.

    Raises:
        PromptError: there is no such file, a table has no such column, or there are too many texts.
            A document that cannot be read has an `error` instead.
    """
    found: list[Document] = []
    for path in paths:
        found += [_document(path)] if column is None else _rows(path, column)
        if len(found) > limits.ANSWERS:
            raise PromptError(f"more than {limits.ANSWERS:,} texts: extract them in several runs")
    return found


def _document(path: str | Path) -> Document:
    file = expanded(path, PromptError)
    if not file.exists():
        raise PromptError(f"there is no file {path}: check its name")
    try:
        text = "\n".join(pages(file))
    except Unreadable as error:
        return Document(str(path), error=str(error))
    return (
        Document(str(path), text)
        if text.strip()
        else Document(str(path), error="the file is empty")
    )


def _rows(path: str | Path, column: str) -> Iterator[Document]:
    suffix = Path(path).suffix.lower()
    if suffix not in TABLES:
        raise PromptError(f"{path} is no table: --text-column needs a .csv or .jsonl file")
    text = limits.read_named(path, limits.PROMPTS_BYTES, PromptError)
    for line, row in (_csv if suffix == ".csv" else json_lines)(text, path):
        where = f"{path}:{line}"
        if not isinstance(row, dict) or column not in row:
            raise PromptError(f"{where} has no column {column!r}: name one by --text-column")
        value = row[column]
        given = isinstance(value, str) and value.strip()
        yield Document(where, value) if given else Document(where, error="there is no text")


def _csv(text: str, path: str | Path) -> Iterator[tuple[int, dict[str, Any]]]:
    rows = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        first = 2
        for row in rows:
            yield first, row
            first = rows.line_num + 1
    except csv.Error as error:
        raise PromptError(f"{path}, line {rows.line_num}: not CSV: {error}") from error


def passage(value: Any, text: str) -> tuple[int, int] | None:
    """Return where a value stands in a text, written alike but for case and white space."""
    words = (value if isinstance(value, str) else json.dumps(value)).split()
    if not words or isinstance(value, bool) or value is None:
        return None
    found = re.search(r"\s+".join(map(re.escape, words)), text, re.IGNORECASE)
    return found.span() if found else None
