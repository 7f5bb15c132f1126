"""Rows: fields of nested objects, confidence, thresholds, and the files that they are written
to."""

import csv
import json
import math
from dataclasses import replace
from io import StringIO

import pytest

from entropix_mlx.extraction.documents import Document
from entropix_mlx.extraction.rows import Row, row_of, with_unsure, write_rows
from entropix_mlx.extraction.task import Example

NESTED = {"n": {"properties": {"b": {}}}}
VALUE = {"document": "a=b", "to": {"name": "Lind, A.", "ids": [1, 2]}, "paid": None}
FIELDS = [
    {"pointer": "/document", "probability": 0.9},
    {"pointer": "/to/name", "probability": 0.8},
    {"pointer": "/to/ids/0", "probability": 0.7},
    {"pointer": "/to/ids/1", "probability": 0.6},
    {"pointer": "/paid", "probability": 0.5},
]
RECORD = {"text": json.dumps(VALUE), "finish_reason": "stop", "fields": FIELDS}


LETTER = Document("a.txt", "Lind, A. owes 2.")


def test_objects_are_flattened_and_a_list_is_as_sure_as_its_least_sure_value():
    row = row_of(LETTER, RECORD)
    assert row.fields == {"document": "a=b", "to/name": "Lind, A.", "to/ids": [1, 2], "paid": None}
    assert row.confidence == {"document": 0.9, "to/name": 0.8, "to/ids": 0.6, "paid": 0.5}


def test_the_least_sure_share_of_all_fields_is_unsure_and_what_was_copied_first():
    rows = [
        Row("a", {"x": 1, "y": 2}, {"x": 0.9, "y": 0.2}, copied=("x",)),
        Row("b", {"x": 1, "y": 2}, {"x": math.nan, "y": 0.1}),
        Row("c", error="unreadable"),
    ]
    expected = {0: [], 0.1: ["ax"], 0.3: ["ax", "bx"], 0.75: ["ax", "bx", "by"]}
    expected[1] = ["ax", "ay", "bx", "by"]
    for share, names in expected.items():
        marked = with_unsure(rows, share)
        assert [row.document + name for row in marked for name in row.unsure] == names
        assert [row.fields for row in marked] == [row.fields for row in rows]


def test_a_value_is_copied_that_an_example_has_and_the_document_has_not():
    shown = {"document": "a=b", "to": {"name": "Lind, A.", "ids": [3]}, "paid": None}
    examples = [Example("Pay a=b to LIND, A. for 3", shown), Example("b", {"document": "b"})]
    assert row_of(LETTER, RECORD, None, examples).copied == ("document",)
    assert row_of(LETTER, RECORD, None, [Example("nothing", shown)]).copied == ()


@pytest.mark.parametrize(
    "record", [{"error": "too long"}, {"text": '{"a', "finish_reason": "length", "fields": []}]
)
def test_what_failed_or_was_cut_off_has_an_error_and_no_fields(record):
    row = row_of(LETTER, record)
    assert row.error
    assert not row.fields


def test_csv_and_json_lines_hold_every_field(tmp_path):
    rows = with_unsure([row_of(LETTER, RECORD), Row("b.txt", error="unreadable")], 0.2)
    write_rows(tmp_path / "rows.csv", rows)
    write_rows(tmp_path / "rows.jsonl", rows)
    first, second = csv.DictReader(StringIO((tmp_path / "rows.csv").read_text()))
    assert first["document"] == "a.txt"
    assert first["fields.document"] == "a=b"
    assert (first["to/name"], first["to/name.confidence"]) == ("Lind, A.", "0.8000")
    assert (first["to/ids"], first["paid"], first["unsure"]) == ("[1, 2]", "null", "paid")
    assert (second["error"], second["to/name"]) == ("unreadable", "")
    lines = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert lines == [row.to_dict() for row in rows]


HOSTILE = ["=1+1", "+1+cmd", "-1+1", "@SUM(A1)", "\t=1", "\n=1", "'=1"]


def test_what_a_spreadsheet_would_run_is_written_as_text(tmp_path):
    rows = [Row(text, {"=f": text, "n": -5}, {"=f": 1.0, "n": 1.0}) for text in HOSTILE]
    rows = [replace(row, unsure=("=f",)) for row in rows]
    rows.append(Row("plain", {"=f": "-1.5", "n": 0}, {"=f": 1.0, "n": 1.0}))
    write_rows(tmp_path / "rows.csv", rows)
    *hostile, plain = csv.reader(
        StringIO((tmp_path / "rows.csv").read_bytes().decode(), newline="")
    )
    assert all(cell[:1] not in "=+@\t\r" for row in hostile for cell in row if cell)
    assert [row[1] for row in hostile[1:]] == [f"'{text}" for text in HOSTILE[:-1]] + ["'=1"]
    assert plain[:4] == ["plain", "-1.5", "1.0000", "0"]


NAMES = ["", "value", "document", "fields.", "fields.document", "a", "a.confidence", "a/b", "a~1b"]


def test_every_name_has_a_column_of_its_own(tmp_path):
    fields = {name: index for index, name in enumerate(NAMES)}
    record = {"text": json.dumps(fields | {"a": {"b": 9}}), "finish_reason": "stop", "fields": []}
    row = row_of(LETTER, record)
    write_rows(tmp_path / "rows.csv", [row])
    header, cells = csv.reader(StringIO((tmp_path / "rows.csv").read_text()))
    assert len(row.fields) == len(NAMES)
    assert len(set(header)) == len(header) == 2 * len(NAMES) + 5
    assert set(map(str, range(9))) - {"5"} <= set(cells)


@pytest.mark.parametrize(
    ("schema", "names"),
    [
        ({"properties": {"a": {}, "n": {"$ref": "#/$defs/n"}}, "$defs": NESTED}, {"a", "n/b"}),
        ({"anyOf": [{"properties": {"a": {}}}, {"type": "null"}]}, {"a"}),
        ({"type": "object"}, {"value"}),
    ],
)
def test_unlisted_properties_are_no_fields(schema, names):
    text = json.dumps({"a": 1, "n": {"b": 2, "c": 3}, "x": 4, "": 5})
    record = {"text": text, "finish_reason": "stop", "fields": []}
    assert row_of(LETTER, record, schema).fields.keys() == names
