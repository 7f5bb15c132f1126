"""What a person decides about unsure fields, and the file that keeps it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entropix_mlx.errors import OutputError
from entropix_mlx.extraction.documents import passage
from entropix_mlx.extraction.review import How, Review, read_decisions, with_decisions
from entropix_mlx.extraction.rows import Row

ROWS = [
    Row("a", {"x": "one", "n": 1}, {"x": 0.4, "n": 0.9}, unsure=("x",)),
    Row("b", {"x": "two", "n": 2}, {"x": 0.3, "n": 0.2}, unsure=("x", "n", "missing")),
    Row("c", error="unreadable"),
]


@pytest.fixture
def review(tmp_path):
    return lambda: Review(ROWS, {"a": "It is One."}, {}, tmp_path / "decisions.jsonl")


def test_the_least_sure_comes_first_and_decisions_outlive_the_review(review, tmp_path):
    first = review()
    assert [(doubt.row, doubt.field) for doubt in first.doubts] == [(1, "n"), (1, "x"), (0, "x")]
    n, x, other = first.doubts
    first.decide(n, 5)
    first.decide(x, "two")
    first.decide(other, "three")
    assert first.undo().document == "a"
    again = review()
    assert again.decision(n).how is How.TYPED
    assert again.decision(x).how is How.ACCEPTED
    assert again.decision(other) is None
    rows = with_decisions(ROWS, read_decisions(tmp_path / "decisions.jsonl"))
    assert rows[1].fields == {"x": "two", "n": 5}
    assert rows[1].reviewed == ("x", "n")
    assert rows[1].unsure == ("missing",)
    assert (rows[0], rows[2]) == (ROWS[0], ROWS[2])


def test_undo_goes_back_to_the_beginning(review):
    begun = review()
    for doubt in begun.doubts:
        begun.decide(doubt, "?")
    while begun.undo():
        pass
    assert all(review().decision(doubt) is None for doubt in begun.doubts)


@pytest.mark.parametrize("line", ["{", "[]", '{"document": "a"}', '{"how": "guessed"}'])
def test_a_file_of_something_else_is_refused(review, tmp_path, line):
    (tmp_path / "decisions.jsonl").write_text(f"{line}\n")
    with pytest.raises(OutputError):
        review()


@given(st.text(max_size=8), st.text(max_size=8), st.text(min_size=1, max_size=8))
def test_a_passage_is_the_value_as_the_document_has_it(before, after, value):
    found = passage(value, f"{before} {value} {after}")
    if value.split():
        begin, end = found
        words = f"{before} {value} {after}"[begin:end].split()
        assert [word.casefold() for word in words] == [word.casefold() for word in value.split()]
    else:
        assert found is None


@pytest.mark.parametrize("value", [True, None, "absent", ""])
def test_what_the_document_does_not_say_has_no_passage(value):
    assert passage(value, "true and null") is None
