"""Rows: fields of nested objects, confidence, thresholds, and the files that they are written
to."""

import csv
import json
import math
from io import StringIO

import pytest

from entropix_mlx.errors import ProfileError
from entropix_mlx.extraction.rows import Row, read_thresholds, row_of, write_rows, write_thresholds

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
    row = row_of("a.txt", RECORD, {"to/name": 0.85, "paid": 0.5, "missing": 0.1})
    assert row.fields == {"document": "a=b", "to/name": "Lind, A.", "to/ids": [1, 2], "paid": None}
    assert row.confidence == {"document": 0.9, "to/name": 0.8, "to/ids": 0.6, "paid": 0.5}
    assert row.unsure == ("to/name", "missing")


@pytest.mark.parametrize(
    "record", [{"error": "too long"}, {"text": '{"a', "finish_reason": "length", "fields": []}]
)
def test_what_failed_or_was_cut_off_has_an_error_and_no_fields(record):
    row = row_of("a.txt", record, {})
    assert row.error
    assert not row.fields


def test_csv_and_json_lines_hold_every_field(tmp_path):
    rows = [row_of("a.txt", RECORD, {"paid": 0.9}), Row("b.txt", error="unreadable")]
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


def test_thresholds_survive_their_file(tmp_path):
    stated = {"to/name": 0.25, "never.sure": math.inf}
    write_thresholds(tmp_path / "t.toml", stated, 0.1, 50)
    assert read_thresholds(tmp_path / "t.toml") == stated


@pytest.mark.parametrize("content", ["", "thresholds = 1", '[thresholds]\na = "x"', "[", "\xff"])
def test_a_file_without_thresholds_is_refused(tmp_path, content):
    (tmp_path / "t.toml").write_bytes(content.encode("latin-1"))
    with pytest.raises(ProfileError):
        read_thresholds(tmp_path / "t.toml")
