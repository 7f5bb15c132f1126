"""Where prose may be interrupted, and what is never interrupted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entropix_mlx.answer.interventions.prose import Place, Surroundings
from entropix_mlx.answer.interventions.thinking import forms

SENTENCE = "The sky is blue."


def place(text, following):
    surroundings = Surroundings()
    surroundings.add(text)
    return surroundings.place(following)


@pytest.mark.parametrize(
    ("text", "following", "expected"),
    [
        (SENTENCE, " The", Place.SENTENCE),
        ("Das ist ja schön!", " Und", Place.SENTENCE),
        ("今日は雨です。", "明日", Place.SENTENCE),
        (f"{SENTENCE}\n", "The", Place.LINE),
        (f"{SENTENCE}\n\n", "The", Place.LINE),
        ("Use `a.b` to do this.", " The", Place.SENTENCE),
        (f"```\nx = 1\n```\n{SENTENCE}", " The", Place.SENTENCE),
        (f"<p>\nno.\n</p>\n{SENTENCE}", " The", Place.SENTENCE),
        ("It costs $5 in all shops.", " The", Place.SENTENCE),
        ("The sky, they say,", " is", Place.CLAUSE),
        ("The sky is really", " blue", Place.WORD),
        ("", "The", None),
        ("Yes.", " The", None),  # too little to tell what is around
        ("He met Mrs. and e.g.", " foxes", None),
        ("The value of pi is 3.", "14", None),
        ("The value of pi is 3", ".14", None),
        ("The sky is blue. It is the year 1999.", " 5", None),
        (SENTENCE, "\n", None),
        (f"{SENTENCE}\n", "- one", None),
        (f"{SENTENCE}\n", "1", None),
        ("An empty swing,\n", "The", None),
        ("An empty swing,\nin a playground at night.\n\n", "The", None),
        (f"An empty swing,\nand so on.\n\n{SENTENCE}", " The", Place.SENTENCE),
        (f"The answer:\n{SENTENCE}", " The", Place.SENTENCE),
        ("Here are some birds:\n", "The", None),
        ("Read more about it at https://en.", " The", None),
        ("Write to me at a@b.org.", " The", None),
        (f"1. {SENTENCE}", " The", None),
        (f"- {SENTENCE}\n", "The", None),
        (f"> {SENTENCE}", " The", None),
        (f"# {SENTENCE}\n", "The", None),
        (f"| {SENTENCE}", " The", None),
        (f"    {SENTENCE}", " The", None),
        (f"He said: “{SENTENCE}", " The", None),
        (f'He said: "{SENTENCE}', " The", None),
        (f"**Note: {SENTENCE}", " The", None),
        (f"*Note: {SENTENCE}", " The", None),
        (f"<think>\n{SENTENCE}", " The", Place.SENTENCE),
        ("Use `foo to do it. So it is done.", " The", None),
        ("def f(x): return the value of it.", " The", None),
        ("We know that a = b is not so.", " The", None),
    ],
)
def test_places(text, following, expected):
    assert place(text, following) is expected


SPANS = [
    ("```python\n", "```\n"),
    ("~~~\n", "~~~\n"),
    ("<div>\n", "</div>\n"),
    ("{\n", "}\n"),
    ("$$\n", "$$\n"),
    ("\\[\n", "\\]\n"),
]


@given(
    st.sampled_from(SPANS),
    st.lists(st.sampled_from([SENTENCE, "x", "", "Is it so? No, it is not."]), max_size=5),
    st.sampled_from([" The", "The", " is"]),
)
def test_nothing_is_inserted_inside_what_spans_lines(span, lines, following):
    opening, closing = span
    inside = opening + "".join(line + "\n" for line in lines)
    for text in (inside, inside + SENTENCE):
        assert place(text, following) is None
    assert place(inside + closing + SENTENCE, " The") is Place.SENTENCE


SIGNS = ("\n", "\n\n", "```\n", "`", "<p>", "</p>", "{", "}", " a", ", ", "3.14", "- ")


@given(st.lists(st.sampled_from([SENTENCE, *SIGNS]), max_size=12), st.data())
def test_it_does_not_matter_in_which_pieces_a_text_comes(pieces, data):
    text = "".join(pieces)
    surroundings, begin = Surroundings(), 0
    while begin < len(text):
        end = data.draw(st.integers(begin + 1, len(text)))
        surroundings.add(text[begin:end])
        begin = end
    for following in (" The", "The", " is", "\n"):
        assert surroundings.place(following) is place(text, following)


@pytest.mark.parametrize(
    ("text", "at", "plain", "trailing"),
    [
        (" Wait,", Place.SENTENCE, " Wait,", " Wait,"),
        (" Wait,", Place.LINE, "Wait,", "Wait,"),
        (" Wait,", Place.CLAUSE, " wait,", " wait,"),
        (" Wait,", Place.WORD, " — wait,", "… wait,"),
        ("Let me think.", Place.WORD, " — let me think —", "… let me think …"),
        ("I see.", Place.CLAUSE, " I see,", " I see,"),
        ("\n\n", Place.SENTENCE, "\n\n", "\n\n"),
    ],
)
def test_how_a_text_is_written_at_a_place(text, at, plain, trailing):
    assert forms(text, at) == (plain, trailing)
