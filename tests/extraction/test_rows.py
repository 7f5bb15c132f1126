"""Rows: fields of nested objects, confidence, thresholds, and the files that they are written
to."""

import csv
import json
from io import StringIO

import pytest

from entropix_mlx.extraction.rows import Row, row_of, write_rows

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


def test_objects_are_flattened_and_a_list_is_as_sure_as_its_least_sure_value():
    row = row_of("a.txt", RECORD, 0.6)
    assert row.fields == {"document": "a=b", "to/name": "Lind, A.", "to/ids": [1, 2], "paid": None}
    assert row.confidence == {"document": 0.9, "to/name": 0.8, "to/ids": 0.6, "paid": 0.5}
    assert row.unsure == ("paid",)


@pytest.mark.parametrize(
    "record", [{"error": "too long"}, {"text": '{"a', "finish_reason": "length", "fields": []}]
)
def test_what_failed_or_was_cut_off_has_an_error_and_no_fields(record):
    row = row_of("a.txt", record)
    assert row.error
    assert not row.fields


def test_csv_and_json_lines_hold_every_field(tmp_path):
    rows = [row_of("a.txt", RECORD, 0.55), Row("b.txt", error="unreadable")]
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
    row = row_of("d", record)
    write_rows(tmp_path / "rows.csv", [row])
    header, cells = csv.reader(StringIO((tmp_path / "rows.csv").read_text()))
    assert len(row.fields) == len(NAMES)
    assert len(set(header)) == len(header) == 2 * len(NAMES) + 4
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
    assert row_of("d", record, 0.0, schema).fields.keys() == names
