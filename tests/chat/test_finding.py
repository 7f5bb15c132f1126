"""Finding the reasoning in an answer, whatever its tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entropix_mlx.chat.finding import find_reasoning


@pytest.mark.parametrize(
    ("texts", "spans"),
    [
        ([], []),
        (["", "a", "b"], []),
        (["<think>", "a", "</think>", "b"], [(0, 3, True)]),
        (["x", "<", "think", ">a", "b</", "think", ">\n", "c"], [(1, 7, True)]),
        (["a", "", "</think>", "", "b"], [(0, 3, True)]),
        (["<think>", "a", "b"], [(0, 3, False)]),
        (["<think>", "</think>", "a", "<think>", "b", "</think>"], [(0, 2, True), (3, 6, True)]),
        (["a</think>b<think>c</think>"], [(0, 1, True), (0, 1, True)]),
        (["<think>a</think>", "b", "</think>"], [(0, 1, True)]),
    ],
)
def test_spans(texts, spans):
    assert find_reasoning(texts) == spans


@given(st.lists(st.text("<think>/ a", max_size=12)), st.text("abc <", max_size=9), st.data())
def test_spans_do_not_depend_on_how_a_text_is_cut(before, inside, data):
    text = "".join(before).replace("think", "thin") + f"<think>{inside}</think>"
    cut = data.draw(st.integers(0, len(text)))
    ((start, end, closed),) = find_reasoning([text[:cut], text[cut:]])
    assert closed
    assert end == (1 if cut == len(text) else 2)
    assert start == int(text.index("<think>") >= cut)
