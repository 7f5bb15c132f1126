"""Where an answer may be interrupted, and where never."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entropix_mlx.answer.sentences import Lines
from entropix_mlx.answer.thinking import forms

SENTENCE = "The sky is blue."


def may_be_interrupted(text, following):
    lines = Lines()
    lines.add(text)
    return lines.may_be_interrupted(following)


@pytest.mark.parametrize(
    ("text", "following", "expected"),
    [
        (SENTENCE, " The", True),
        ("Das ist ja schön!", " Und", True),
        ("今日は雨です。", "明日", True),
        (f"{SENTENCE}\n", "The", True),
        (f"{SENTENCE}\n\n", "The", True),
        (f"```\nx = 1\n```\n{SENTENCE}", " The", True),
        (f"- {SENTENCE}", " The", True),
        ("An empty swing,\n", "The", True),
        ("", "The", False),
        ("\n", "The", False),
        ("The sky, they say,", " is", False),
        ("He met Mrs. and e.g.", " foxes", False),
        ("The value of pi is 3.", "14", False),
        ("The sky is blue. It is the year 1999.", " 5", False),
        (SENTENCE, "\n", False),
        (f"{SENTENCE}\n", "- one", False),
        ("Read more about it at https://en.", "Wikipedia", False),
    ],
)
def test_places(text, following, expected):
    assert may_be_interrupted(text, following) is expected


@given(
    st.sampled_from([("```python\n", "```\n"), ("~~~\n", "~~~\n")]),
    st.lists(st.sampled_from([SENTENCE, "x", "", "Is it so? No, it is not."]), max_size=5),
    st.sampled_from([" The", "The", " is"]),
)
def test_code_is_not_interrupted(span, lines, following):
    opening, closing = span
    inside = opening + "".join(line + "\n" for line in lines)
    for text in (inside, inside + SENTENCE):
        assert not may_be_interrupted(text, following)
    assert may_be_interrupted(inside + closing + SENTENCE, " The")


SIGNS = ("\n", "\n\n", "```\n", "`", " a", ", ", "3.14", "- ")


@given(st.lists(st.sampled_from([SENTENCE, *SIGNS]), max_size=12), st.data())
def test_it_does_not_matter_in_which_pieces_a_text_comes(pieces, data):
    text = "".join(pieces)
    lines, begin = Lines(), 0
    while begin < len(text):
        end = data.draw(st.integers(begin + 1, len(text)))
        lines.add(text[begin:end])
        begin = end
    for following in (" The", "The", " is", "\n"):
        assert lines.may_be_interrupted(following) is may_be_interrupted(text, following)


@pytest.mark.parametrize(
    ("text", "behind_sentence", "at_line_start"),
    [
        (" Wait,", " Wait,", "Wait,"),
        ("Let me think.", " Let me think.", "Let me think."),
        ("\n\n", "\n\n", "\n\n"),
    ],
)
def test_how_a_text_is_written(text, behind_sentence, at_line_start):
    assert forms(text) == (behind_sentence, at_line_start)
