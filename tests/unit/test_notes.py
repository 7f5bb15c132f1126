"""A folder of notes: what is read of it, and what is found."""

import os
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from entropix_mlx import limits
from entropix_mlx import notes as module
from entropix_mlx.errors import NotesError
from entropix_mlx.notes import Notes, Unreadable, pages, passages

VELMORA = """# Velmora

A town by the sea.

People
======
- The harbour master is Tessa Quint.
- The baker
  is Olin Mar.

```
# no heading
```
"""


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "notes"
    made.mkdir()
    return made


@pytest.fixture
def notes(folder):
    """Return a function that opens the folder with some files in it."""

    def opened(**texts):
        for name, text in texts.items():
            path = folder / name.replace("_", ".")
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return Notes(folder)

    return opened


def test_markdown_is_cut_at_headings_and_blank_lines():
    assert list(passages(VELMORA, markdown=True)) == [
        ("A town by the sea.", 3, "Velmora"),
        ("The harbour master is Tessa Quint. The baker is Olin Mar.", 7, "People"),
        ("``` # no heading ```", 11, "People"),
    ]


def test_a_long_paragraph_is_cut_between_sentences_and_says_in_which_line():
    text = "\n".join(f"Sentence number {n} is here and has some words." for n in range(1, 31))
    found = list(passages(text))
    assert len(found) > 2
    assert " ".join(passage for passage, *_ in found) == " ".join(text.split())
    for passage, line, _ in found:
        assert len(passage) <= limits.NOTE_PASSAGE_CHARACTERS
        assert text.split("\n")[line - 1].startswith(passage[:17])


def test_the_best_passage_is_found_with_its_place(notes):
    opened = notes(velmora_md=VELMORA, other_txt="The harbour master of Brask is Nils Orr.\n")
    retrieve = opened.about("Who is the harbour master of Brask?")
    first, *_ = retrieve("It is")
    assert first.text == "The harbour master of Brask is Nils Orr."
    assert (first.source.label, first.score) == ("other.txt, line 1", 1.0)
    assert (opened.files, opened.passages) == (2, 4)


def test_a_sentence_of_the_answer_counts_where_the_question_says_little(notes):
    opened = notes(velmora_md=VELMORA)
    passages = opened.about("Tell me about the sea")("The baker of the town is")
    assert "Olin Mar" in passages[0].text or "Olin Mar" in passages[1].text
    assert opened.about("who")("what") == []


def test_words_are_found_in_their_other_forms(notes):
    opened = notes(a_txt="Zwei Bäcker backen Brötchen.", b_txt="He was climbing mountains.")
    assert opened.best("backer brotchen")[0].source.name == "a.txt"
    assert opened.best("who climbs a mountain?")[0].score == 1.0


def test_what_is_no_text_is_skipped_with_the_reason(notes, folder, monkeypatch):
    monkeypatch.setattr(limits, "NOTE_BYTES", 1000)
    os.mkfifo(folder / "pipe.txt")
    (folder / "link.txt").symlink_to("/etc/passwd")
    (folder / ".hidden.txt").write_text("secret")
    opened = notes(
        ok_txt="\ufeffapples\r\npears", bad_txt=b"\xff\xfe", zero_txt=b"a\0b", big_txt="x " * 501
    )
    assert opened.files == 1
    assert opened.faults.keys() == {"bad.txt", "zero.txt", "big.txt"}
    assert opened.best("secret root") == []


def pdf(*pages):
    """Return a PDF file with a line of text a page."""
    kids = " ".join(f"{4 + 2 * number} 0 R" for number in range(len(pages)))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for number, text in enumerate(pages):
        drawn = f"BT /F 12 Tf 20 200 Td ({text}) Tj ET"
        objects += [
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 300 300] /Contents {5 + 2 * number} 0 R"
            " /Resources << /Font << /F 3 0 R >> >> >>",
            f"<< /Length {len(drawn)} >>\nstream\n{drawn}\nendstream",
        ]
    body = "".join(f"{number} 0 obj\n{one}\nendobj\n" for number, one in enumerate(objects, 1))
    return f"%PDF-1.4\n{body}trailer\n<< /Root 1 0 R >>\nstartxref\n0\n%%EOF\n".encode()


def test_a_pdf_file_is_found_by_its_page(notes, monkeypatch):
    opened = notes(a_pdf=pdf("Apples are red.", "Pears are green."), b_pdf=b"%PDF-1.7 damaged")
    (found,) = opened.best("green pears")
    assert (found.text, found.source.page) == ("Pears are green.", 2)
    assert opened.faults.keys() == {"b.pdf"}
    monkeypatch.setattr("pypdf.PageObject.extract_text", lambda page: "half a pair: \ud800")
    assert notes(a_txt="Plums.", c_pdf=pdf("Pears.")).faults.keys() == {"a.pdf", "b.pdf", "c.pdf"}
    monkeypatch.undo()
    monkeypatch.setattr(limits, "NOTE_PAGES", 1)
    assert notes(a_pdf=pdf("Figs.", "Pears."), b_pdf=b"", c_pdf=b"").best("pears") == []
    monkeypatch.setitem(sys.modules, "pypdf", None)
    assert "pip install" in notes(a_pdf=b"%PDF-1.7").faults["a.pdf"]


def test_a_folder_that_cannot_be_used_is_named(folder, tmp_path, monkeypatch):
    with pytest.raises(NotesError, match=str(tmp_path / "nothing")):
        Notes(tmp_path / "nothing")
    with monkeypatch.context() as without:
        without.setattr(module, "TABLE", module.TABLE.replace("fts5", "fts5_missing"))
        with pytest.raises(NotesError, match="fts5_missing"):
            Notes(folder)
    (folder / "a.txt").write_text("a")
    monkeypatch.setattr(limits, "NOTE_FILES", 0)
    with pytest.raises(NotesError, match=str(folder)):
        Notes(folder)


PAGE = """<!DOCTYPE html><title>Fruit</title><!-- <p>no --><style>p > a {}</style>
<p class="a>b" title='<i>'>figs &amp; d<b>ates</b><br/>nuts &lt;3</p><SCRIPT>"</p>"</script>
<template>x</template><p>2 < 3"""


def test_the_text_of_a_page_is_what_a_browser_shows(tmp_path):
    (tmp_path / "a.html").write_text(PAGE)
    (text,) = pages(tmp_path / "a.html")
    assert text.split("\n") == ["Fruit", "figs & d", "ates", "nuts <3", "2 < 3"]


@pytest.mark.parametrize("repeated", ["<a ", "<p a=1 ", "<a b='", "<!--", "<![CDATA[", "</", "&"])
def test_a_page_of_a_megabyte_may_leave_all_open(tmp_path, repeated):
    page = tmp_path / "a.html"
    page.write_text("figs" + repeated * (10**6 // len(repeated)))
    (text,) = pages(page)  # tests/contracts says in which time
    assert text.startswith("figs")


def test_a_character_of_thousands_of_digits_is_no_text(tmp_path):
    (tmp_path / "a.html").write_text(f"&#{'9' * 5000};")
    with pytest.raises(Unreadable):
        pages(tmp_path / "a.html")


HOSTILE = st.text(st.characters(codec="utf-8") | st.sampled_from("\"'*^:(){}+- \0\n"), max_size=60)
OPERATORS = st.lists(
    st.sampled_from(["AND", "OR", "NOT", "NEAR(", "name:", "apples", '"', "*", "^", ")", "fact7"])
).map(" ".join)


@pytest.fixture(scope="module")
def fruit(tmp_path_factory):
    folder = tmp_path_factory.mktemp("notes")
    (folder / "a.md").write_text("# Fruit\n\napples AND pears\n\nfact7 is near(here)\n")
    return Notes(folder)


@settings(deadline=None, max_examples=25)
@given(question=HOSTILE | OPERATORS, sentence=HOSTILE | OPERATORS)
def test_no_question_is_an_error(fruit, question, sentence):
    for passage in fruit.about(question)(sentence):
        assert 0 <= passage.score <= 1


@given(text=st.text(st.characters(codec="utf-8"), max_size=2000), markdown=st.booleans())
def test_a_text_is_cut_without_loss(text, markdown):
    found = list(passages(text, markdown=markdown))
    assert all(0 < len(passage) <= limits.NOTE_PASSAGE_CHARACTERS for passage, *_ in found)
    assert all(1 <= line <= len(text.split("\n")) for _, line, _ in found)
    if not markdown:
        assert "".join("".join(p for p, *_ in found).split()) == "".join(text.split())


@given(words=st.lists(st.text("abc", min_size=1, max_size=500), min_size=1))
def test_a_passage_begins_in_its_line(words):
    text = "\n".join(words)
    for passage, line, _ in passages(text):
        assert passage[:200] in " ".join(words)
        begun = words[line - 1]
        assert passage.startswith(begun[: len(passage)]) or passage[:50] in begun
