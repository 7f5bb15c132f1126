"""Whatever is asked, and whatever a note holds: a search answers, and text is cut without loss."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from entropix_mlx import limits
from entropix_mlx.notes.files import pieces
from entropix_mlx.notes.notes import Notes

HOSTILE = st.text(st.characters(codec="utf-8") | st.sampled_from("\"'*^:(){}+- \0\n"), max_size=60)
OPERATORS = st.lists(
    st.sampled_from(["AND", "OR", "NOT", "NEAR(", "name:", "apples", '"', "*", "^", ")", "fact7"])
).map(" ".join)


@pytest.fixture(scope="module")
def notes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("notes")
    (folder / "a.md").write_text("# Fruit\n\napples AND pears\n\nfact7 is near(here)\n")
    return Notes(folder, cache=tmp_path_factory.mktemp("cache"))


@settings(deadline=None, max_examples=25)
@given(question=HOSTILE | OPERATORS, sentence=HOSTILE | OPERATORS)
def test_no_question_is_an_error(notes, question, sentence):
    for passage in notes.about(question)(sentence):
        assert 0 <= passage.score <= 1


@given(text=st.text(st.characters(codec="utf-8"), max_size=2000), markdown=st.booleans())
def test_a_text_is_cut_without_loss(text, markdown):
    found = list(pieces(text, markdown=markdown))
    assert all(0 < len(piece.text) <= limits.NOTE_PASSAGE_CHARACTERS for piece in found)
    lines = text.split("\n")
    assert all(1 <= piece.line <= len(lines) for piece in found)
    if not markdown:
        assert "".join("".join(p.text for p in found).split()) == "".join(text.split())


@given(words=st.lists(st.text("abc", min_size=1, max_size=500), min_size=1))
def test_a_passage_begins_in_its_line(words):
    text = "\n".join(words)
    for piece in pieces(text):
        assert piece.text[:200] in " ".join(words)
        begun = words[piece.line - 1]
        assert piece.text.startswith(begun[: len(piece.text)]) or piece.text[:50] in begun
