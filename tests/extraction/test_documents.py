"""What fields are extracted from: files of all kinds, and tables."""

import pytest

from entropix_mlx.errors import PromptError
from entropix_mlx.extraction.documents import read_documents
from tests.unit.test_notes import pdf


def test_text_markdown_html_and_pdf_are_read_as_text(tmp_path):
    content = {
        "a.txt": "\ufeffapples\r\npears".encode(),
        "b.md": b"# Fruit\n\n*plums*",
        "c.html": b"<style>p {}</style><p>figs &amp; dates</p><script>x()</script><p>nuts</p>",
        "d.pdf": pdf("cherries", "grapes"),
        "e.log": b"limes",
    }
    for name, written in content.items():
        (tmp_path / name).write_bytes(written)
    found = read_documents([tmp_path / name for name in content])
    assert [document.text.split() for document in found] == [
        ["apples", "pears"],
        ["#", "Fruit", "*plums*"],
        ["figs", "&", "dates", "nuts"],
        ["cherries", "grapes"],
        ["limes"],
    ]
    assert [document.name for document in found] == [str(tmp_path / name) for name in content]


@pytest.mark.parametrize("content", [b"\xff\xfe", b"a\0b", b"", b" \n", b"%PDF-1.7 cut"])
def test_a_document_that_cannot_be_read_is_an_error_of_its_own(tmp_path, content):
    file = tmp_path / ("a.pdf" if content.startswith(b"%PDF") else "a.txt")
    file.write_bytes(content)
    (tmp_path / "b.txt").write_text("fine")
    failed, fine = read_documents([file, tmp_path / "b.txt"])
    assert failed.error
    assert (fine.text, fine.error) == ("fine", "")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv", 'id,body\n1,"two\nlines"\n2,\n3,end\n'),
        ("t.jsonl", '{"body": "two\\nlines"}\n\n{"body": " "}\n{"body": "end"}'),
    ],
)
def test_rows_of_a_table_are_named_by_their_lines(tmp_path, name, content):
    table = tmp_path / name
    table.write_text(content)
    found = read_documents([table], "body")
    lines = [2, 4, 5] if name == "t.csv" else [1, 3, 4]
    assert [document.name for document in found] == [f"{table}:{line}" for line in lines]
    assert [document.text for document in found] == ["two\nlines", "", "end"]
    assert [bool(document.error) for document in found] == [False, True, False]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv", 'id\n"1'),
        ("t.csv", "id\n1\n"),
        ("t.csv", "id,body\n" + "1" * 200_000),
        ("t.jsonl", "[1]"),
        ("t.jsonl", "{"),
        ("t.txt", "words"),
        ("missing.csv", None),
    ],
)
def test_a_table_without_the_column_is_refused(tmp_path, name, content):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(PromptError):
        read_documents([tmp_path / name], "body")


def test_a_file_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(PromptError):
        read_documents([tmp_path / "missing.txt"])
