"""Where a branch ends: with a sentence, but not inside a number."""

import pytest

from entropix_mlx.answer.sentences import sentence_end


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("It rains. And", "It rains."),
        ("It rains", None),
        ("It is 9.11", None),
        ("It is 9.11. Yes", "It is 9.11."),
        ("It is 9.11.\n", "It is 9.11."),
        ("1. Eggs", None),
        ("Buy:\n  12. Eggs. Milk", "Buy:\n  12. Eggs."),
        ("A. Eggs. Milk", "A. Eggs."),
        ("In 1999. Then", "In 1999."),
        ('He said "no." Then', 'He said "no."'),
        ("**Really?** Yes", "**Really?**"),
        ("Stop! Go", "Stop!"),
        ("He said no. Then", "He said no."),
        ("Well... maybe", "Well..."),
        ("Well… maybe", "Well…"),
        ("see example.com for", None),
        ("今日は雨です。明日は", "今日は雨です。"),
        ("", None),
    ],
)
def test_the_first_sentence(text, sentence):
    end = sentence_end(text)
    assert (None if end is None else text[:end]) == sentence


@pytest.mark.parametrize("text", ["It rains.", "9.", "https://en.", "self.", "Stop!", "e.g."])
def test_what_may_follow_is_waited_for(text):
    assert sentence_end(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "Mrs. Smith came",
        "met Dr. Who and St. Paul",
        "fruit, e.g. Apples",
        "that is, i.e. Now",
        "J. K. Rowling wrote",
        "the U.S. Army marched",
        "approx. five metres",
        "an unknown abbr. here",
        "No. 5 is alive",
        "on Dec. 5 it",
        "https://en.wikipedia.org/wiki/Sea and",
        "self.value = other.value",
        "z.B. Bananen",
        "version 1.2.3 of",
    ],
)
def test_a_full_stop_that_ends_no_sentence(text):
    assert sentence_end(text) is None
    assert sentence_end(text + ". Then") == len(text) + 1


def test_what_stands_before_is_context_only():
    assert sentence_end("Yes. It is 9. ", 4) == 13
    assert sentence_end("Yes. It is 9.11 m. ", 13) == 18
    assert sentence_end("I met Mrs" + ". Smith", 9) is None
