"""What speaks against a thought, whatever it gains."""

import pytest

from entropix_mlx.answer.interventions.thinking import flaw
from entropix_mlx.step import DropReason
from tests.scripted import EOS, TOKENIZER


def ids(text):
    return TOKENIZER.encode(text)


@pytest.mark.parametrize(
    ("before", "watched", "length", "reason"),
    [
        (" The sky is blue.", " We all see it now", 2, None),
        (" The sky is. Wait", " We all see it now", 2, None),  # only the thought itself repeats
        (" The sky is. Wait We see", " We all see it now", 2, DropReason.LOOP),
        (" The sky is blue.", " The sky and then", 2, DropReason.LOOP),
        (" The sky is blue.", " The sky and then", 3, None),
        (" The sky is blue.", " The sky and then", 0, None),
        (" The sky is blue.", " We all. Wait", 0, DropReason.ECHO),
    ],
)
def test_a_thought_is_dropped_where_it_loops_or_is_repeated(before, watched, length, reason):
    inserted = ids(". Wait")
    assert flaw(TOKENIZER, ids(before), inserted, ids(watched), length) == reason


def test_a_thought_that_ends_the_answer_is_dropped():
    assert flaw(TOKENIZER, ids(" The sky"), ids(" Wait"), [EOS], 2) is DropReason.END
