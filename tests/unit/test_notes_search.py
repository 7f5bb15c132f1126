"""Whatever is asked, and whatever a note holds: a search answers, and text is cut without loss."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from entropix_mlx import limits
from entropix_mlx.notes import Notes, passages

HOSTILE = st.text(st.characters(codec="utf-8") | st.sampled_from("\"'*^:(){}+- \0\n"), max_size=60)
OPERATORS = st.lists(
    st.sampled_from(["AND", "OR", "NOT", "NEAR(", "name:", "apples", '"', "*", "^", ")", "fact7"])
).map(" ".join)


@pytest.fixture(scope="module")
def notes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("notes")
    (folder / "a.md").write_text("# Fruit\n\napples AND pears\n\nfact7 is near(here)\n")
    return Notes(folder)


@settings(deadline=None, max_examples=25)
@given(question=HOSTILE | OPERATORS, sentence=HOSTILE | OPERATORS)
def test_no_question_is_an_error(notes, question, sentence):
    for passage in notes.about(question)(sentence):
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
