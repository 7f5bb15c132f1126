"""`entropix extract`, as a user types it."""

import csv
import json
from io import StringIO

import jsonschema
import pytest

from tests.folders import edit_json

SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["letter", "bill"]},
        "pages": {"type": "integer", "minimum": 0, "maximum": 99},
        "signed": {"type": "boolean"},
    },
    "required": ["kind", "pages", "signed"],
    "additionalProperties": False,
}
EXAMPLE = {"text": "one", "fields": {"kind": "bill", "pages": 1, "signed": True}}


@pytest.fixture
def extract(entropix, tiny_folder, tmp_path):
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    given = ["--schema", tmp_path / "schema.json", "--model", tiny_folder, "--max-tokens", 80]

    def extract(*arguments):
        return entropix("extract", *arguments, *given)

    return extract


@pytest.fixture
def letters(tmp_path):
    texts = {"a.txt": "a page", "b.txt": "b", "long.txt": "x" * 300, "bad.txt": b"\xff"}
    for name, text in texts.items():
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return [tmp_path / name for name in texts]


def test_each_document_becomes_a_row_and_what_fails_an_error_of_its_row(extract, letters, tmp_path):
    code, out, _ = extract(*letters, "-o", tmp_path / "rows.csv")
    assert code == 2
    assert out.strip() == str(tmp_path / "rows.csv")
    rows = list(csv.DictReader(StringIO((tmp_path / "rows.csv").read_text())))
    assert [row["document"] for row in rows] == list(map(str, letters))
    assert [bool(row["error"]) for row in rows] == [False, False, True, True]
    for row in rows[:2]:
        value = {name: json.loads(row[name]) for name in ("pages", "signed")}
        jsonschema.validate(value | {"kind": row["kind"]}, SCHEMA)
        assert all(0 <= float(row[f"{name}.confidence"]) <= 1 for name in SCHEMA["required"])


def test_a_run_is_resumed_without_answering_again(extract, letters, tmp_path):
    first = extract(letters[0], "-o", tmp_path / "rows.jsonl")
    before = (tmp_path / "rows.jsonl").read_text()
    (tmp_path / "rows.jsonl").unlink()
    assert extract(letters[0], "-o", tmp_path / "rows.jsonl")[0] == 2  # the answers are there
    code, _, err = extract(letters[0], "-o", tmp_path / "rows.jsonl", "--resume")
    assert code == first[0]
    assert "loading" not in err
    assert (tmp_path / "rows.jsonl").read_text() == before


@pytest.mark.parametrize("change", [{"fields": 5}, {"text": "{"}, {"finish_reason": ...}])
def test_an_answer_that_was_changed_is_named(extract, letters, tmp_path, change):
    extract(letters[0], "-o", tmp_path / "rows.csv")
    edit_json(tmp_path / "rows.answers.jsonl", **change)
    with open(tmp_path / "rows.answers.jsonl", "a") as answers:
        answers.write("\n")
    code, _, err = extract(letters[0], "-o", tmp_path / "rows.csv", "--resume")
    assert code == 2
    assert str(letters[0]) in err.splitlines()[-1]


def test_rows_are_printed_where_no_file_is_named(extract, letters):
    code, out, _ = extract(*letters[:2])
    assert code == 0
    names = [json.loads(line)["document"] for line in out.splitlines()]
    assert names == list(map(str, letters[:2]))


def test_a_share_of_the_fields_is_unsure(extract, letters, tmp_path):
    for share, unsure in ((0.3, 2), (1, 6)):
        out = extract(*letters[:2], "--review-share", share)[1]
        found = [json.loads(line) for line in out.splitlines()]
        assert sum(len(row["unsure"]) for row in found) == unsure
    assert extract(*letters[:2], "--review-share", 30)[0] == 2
