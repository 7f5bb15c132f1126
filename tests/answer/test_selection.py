"""Several answers without a model: which is taken, and when more are drawn."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as some

from entropix_mlx.answer.selection import AnswerSelection, Enough
from entropix_mlx.profiles.confidence import (
    CHOICE_SCORE,
    GROUP,
    AnswerMetrics,
    lowest_group,
    score_of,
)
from entropix_mlx.profiles.profile import Profile
from tests.steps import make_step

RULE = Profile.load().answers
LOGPROBS = some.lists(some.integers(-8, 0).map(float), min_size=1, max_size=7)
RACES = some.lists(LOGPROBS, min_size=2, max_size=6)


def steps_of(logprobs, text="7"):
    last = len(logprobs) - 1
    return [
        make_step(i, text if i == last else "", logprob=value, finish_reason="stop" * (i == last))
        for i, value in enumerate(logprobs)
    ]


def race(rule, answers, count=None, until=math.inf):
    """Give each answer that runs a token a turn; return the selection when all have ended."""
    selection = AnswerSelection(rule, count or len(answers), seed=3)
    turn = 0
    while not selection.done and turn < until:
        for candidate, steps in zip(selection.candidates, answers, strict=False):
            if not candidate.ended:
                candidate.steps.append(steps[len(candidate.steps)])
                candidate.ended = len(candidate.steps) == len(steps)
        turn += 1
    return selection


def score(steps):
    return score_of(CHOICE_SCORE, AnswerMetrics.of(steps))


@given(RACES)
def test_the_best_answer_is_chosen(race_of):
    answers = [steps_of(logprobs) for logprobs in race_of]
    selection = race(RULE, answers)
    best = max(score(steps) for steps in answers)
    assert selection.chosen.score == pytest.approx(best) == score(selection.chosen.steps)
    assert selection.chosen.complete
    assert selection.forward_tokens == sum(map(len, answers))
    assert selection.stopped == Enough.ALL


@given(RACES, some.integers(0, 8))
def test_an_interrupt_loses_no_complete_answer(race_of, until):
    answers = [steps_of(logprobs, "7") for logprobs in race_of]
    selection = race(RULE, answers, until=until)
    assert selection.chosen in (selection.complete or selection.candidates[:1])
    for one in selection.candidates:
        assert len(one.steps) == one.forward_tokens - (bool(one.steps) and not one.complete)
    if not selection.complete:
        assert selection.stopped == Enough.INTERRUPTED
    record = selection.to_dict()
    assert [one["text"] for one in record["answers"]] == [c.text for c in selection.candidates]


@given(some.lists(some.floats(-20, 0), min_size=1, max_size=30))
def test_the_lowest_group(logprobs):
    means = [math.fsum(logprobs[i : i + GROUP]) / GROUP for i in range(len(logprobs) - GROUP + 1)]
    assert lowest_group(logprobs) == pytest.approx(min(means or [sum(logprobs) / len(logprobs)]))
