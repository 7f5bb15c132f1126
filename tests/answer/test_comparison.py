"""The comparison of branches: the lead, its error, and tokens that copy."""

import math

import numpy as np
import pytest

from entropix_mlx.answer.interventions.forks import Compared, Copies, leads


def branch(*logprobs, copied=()):
    return Compared(logprobs, [number in copied for number in range(len(logprobs))])


def test_the_lead_is_that_of_a_paired_comparison():
    rng = np.random.default_rng(0)
    rows = -rng.exponential(size=(4, 12))
    found = leads([branch(*row) for row in rows])
    differences = rows[1:] - rows[0]
    one = math.sqrt(differences.var(axis=1, ddof=1).mean())
    assert [lead.nats for lead in found] == pytest.approx([0, *differences.mean(axis=1)])
    assert [lead.error for lead in found[1:]] == pytest.approx([one / math.sqrt(12)] * 3)
    # With two branches it is the t statistic of the paired test.
    lone = leads([branch(*rows[0]), branch(*rows[1])])[1]
    t = differences[0].mean() / (differences[0].std(ddof=1) / math.sqrt(12))
    assert lone.nats / lone.error == pytest.approx(t)


def test_branches_are_compared_over_the_tokens_that_both_have():
    first, short, long = branch(-1, -2, -3), branch(-1.5), branch(-2, -1, -2, -0.01, -0.01)
    found = leads([first, short, long])
    assert [lead.nats for lead in found] == pytest.approx([0, -0.5, 1 / 3])
    assert found[1].error == pytest.approx(found[2].error * math.sqrt(3))


def test_a_lead_must_exceed_its_error():
    steady = leads([branch(-1, -1, -1.1), branch(-0.5, -0.5, -0.5)])[1]
    noisy = leads([branch(-1, -5, -0.1), branch(-2, -0.5, -2)])[1]
    assert noisy.nats == pytest.approx(steady.nats)
    assert steady.exceeds(1.0)
    assert not noisy.exceeds(1.0)
    assert noisy.exceeds(0.0)
    assert not leads([branch(-1), branch(-1)])[1].exceeds(0.0)


def test_without_a_second_token_no_lead_is_known():
    lead = leads([branch(-2), branch(-1)])[1]
    assert lead.error is None
    assert not lead.exceeds(0.0)


def test_what_copies_does_not_count_in_favour():
    first, other = (-1.0, -1.0, -1.0), (-2.0, -0.1, -0.1)
    assert leads([branch(*first), branch(*other)])[1].nats == pytest.approx(0.8 / 3)
    assert leads([branch(*first), branch(*other, copied=(1, 2))])[1].nats == pytest.approx(-1 / 3)
    assert leads([branch(*other), branch(*first)])[1].nats == pytest.approx(-0.8 / 3)
    assert leads([branch(*other, copied=(1, 2)), branch(*first)])[1].nats == pytest.approx(1 / 3)
    # It still counts against: an improbable copy is no reason to win.
    assert leads([branch(*first), branch(*other, copied=(0,))])[1].nats == pytest.approx(0.8 / 3)


def test_a_copy_completes_a_run_that_stood_before():
    assert Copies(4).marks([1, 1]) == [False, False]
    copies = Copies(3)
    copies.follow([1, 2, 3, 4])
    copies.follow([9, 2])
    assert copies.marks([3, 4, 5]) == [False, True, False]
    assert copies.marks([7, 7, 7, 7]) == [False, False, False, True]  # it copies itself
    copies.follow([3])
    assert copies.marks([4]) == [True]
    assert copies.marks([]) == []


def found_by_search(text, rest, length):
    """Tell of each token that goes on from a text whether it completes a run that stood before."""
    whole = text + rest
    runs = [tuple(whole[max(0, end - length) : end]) for end in range(len(whole) + 1)]
    return [
        length > 0 and runs[end] in runs[length:end] for end in range(len(text) + 1, len(whole) + 1)
    ]


@pytest.mark.parametrize("length", [0, 1, 2, 5])
def test_copies_are_found_as_by_searching(length):
    rng = np.random.default_rng(length)
    text, rest = rng.integers(0, 4, size=(2, 30)).tolist()
    copies = Copies(length)
    for token in text:
        copies.follow([token])
    assert copies.marks(rest) == found_by_search(text, rest, length)
