"""Where a rollout ends: with a sentence, but not inside a number."""

import pytest

from entropix_mlx.decoding.sentences import sentence_end


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("It rains.", "It rains."),
        ("It rains. And pours.", "It rains."),
        ("It rains", None),
        ("9.", None),
        ("It is 9.11", None),
        ("It is 9.11.", None),
        ("It is 9.11. Yes", "It is 9.11."),
        ("It is 9.11.\n", "It is 9.11."),
        ("1. Eggs", None),
        ("Buy:\n  12. Eggs. Milk", "Buy:\n  12. Eggs."),
        ("In 1999. Then", "In 1999."),
        ('He said "no." Then', 'He said "no."'),
        ("**Really?** Yes", "**Really?**"),
        ("Stop!", "Stop!"),
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


def test_what_stands_before_is_context_only():
    assert sentence_end("Yes. It is 9.", 4) is None
    assert sentence_end("Yes. It is 9.11 m.", 13) == 18
    assert sentence_end("It is 9" + ".", 7) is None
