"""What several answers cost, with scripted scores and lengths: never more than the budget."""

import random

import pytest

from entropix_mlx.answer.budget import Budget
from entropix_mlx.answer.selection import AnswerSelection, Enough
from entropix_mlx.profiles.profile import Profile
from tests.steps import make_step

RULE = Profile.load().answers.model_copy(update={"count": 8})


def steps_of(length, logprob):
    return [
        make_step(i, "7", logprob=logprob, finish_reason="stop" if i == length - 1 else None)
        for i in range(length)
    ]


def answered(firsts):
    """Return the selections of prompts whose first answers have ended."""
    selections = []
    for seed, (length, logprob, times) in enumerate(firsts):
        selection = AnswerSelection(RULE, "auto", seed, times)
        selection.candidates[0].steps += steps_of(length, logprob)
        selection.candidates[0].ended = True
        selections.append(selection)
    return selections


def finish(budget, selections, length_of):
    """Divide the budget, and let the others run a token a pass until all have ended."""
    lengths = {}
    while True:
        if budget.exhausted:
            for one in selections:
                for other in one.candidates[1:]:
                    one.out_of_budget |= not other.ended
                    other.ended = True
        budget.divide(selections)
        running = [o for one in selections for o in one.candidates[1:] if not o.ended]
        if not running:
            return
        for other in running[:8]:  # places in a batch
            length = lengths.setdefault(id(other), length_of())
            at = len(other.steps)
            reason = "stop" if at == length - 1 else None
            other.steps.append(make_step(at, "7", logprob=-1.0, finish_reason=reason))
            other.ended = reason is not None
            budget.spend(1)


def tokens(selections):
    first = sum(len(one.candidates[0].steps) for one in selections)
    return first, sum(len(other.steps) for one in selections for other in one.candidates)


LENGTHS = {
    "short": lambda draw: draw.randint(1, 6),
    "long": lambda draw: draw.randint(20, 60),
    "mixed": lambda draw: draw.choice([2, 3, 5, 90]),
}


@pytest.mark.parametrize("ranked", [True, False])
@pytest.mark.parametrize("wording", [0.0, -0.5, -3.0])
@pytest.mark.parametrize("first", LENGTHS)
@pytest.mark.parametrize("others", LENGTHS)
@pytest.mark.parametrize("times", [1, 2, 4.5])
def test_no_wording_and_no_length_spends_more_than_the_budget(
    ranked, wording, first, others, times
):
    draw = random.Random(7)
    budget = Budget(ranked=ranked)
    firsts = [(LENGTHS[first](draw), wording + draw.gauss(0, 0.3), times) for _ in range(100)]
    everything = answered(firsts)
    parts = [everything] if ranked else [[one] for one in everything]
    for part in parts:
        finish(budget, part, lambda: LENGTHS[others](draw))
    alone, together = tokens(everything)
    assert all(one.done for one in everything)
    assert together <= times * alone + 8
    if ranked and times > 1 and first == others != "mixed":
        assert together >= 0.9 * times * alone, "what is allowed is spent"


def test_the_least_sure_come_first():
    budget = Budget(ranked=True)
    selections = answered([(10, -number / 10, 2.0) for number in range(20)])
    finish(budget, selections, lambda: 10)
    drawn = [len(one.candidates) for one in selections]
    assert drawn == sorted(drawn)
    assert drawn[-2:] == [8, 8]
    assert drawn[:10] == [1] * 10
    assert selections[0].stopped == Enough.SURE
    assert selections[-1].stopped == Enough.ALL


@pytest.mark.parametrize("wording", [0.0, -0.5, -3.0])
def test_one_at_a_time_the_least_sure_of_a_wording_are_found(wording):
    draw, budget, drawn = random.Random(3), Budget(), {}
    for number in range(300):
        sureness = wording + draw.gauss(0, 0.3)
        (one,) = answered([(10, sureness, 2.0)])
        finish(budget, [one], lambda: 10)
        if number >= 100:
            drawn[sureness] = len(one.candidates) - 1
    least = sorted(drawn)[:30]
    assert sum(drawn[s] for s in least) > 0.5 * sum(drawn.values()) > 0
