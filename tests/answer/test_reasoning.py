"""A budget of reasoning, with tags of several tokens; tests/server/test_reasoning.py has others."""

import random
from contextlib import suppress
from types import SimpleNamespace

import pytest

from entropix_mlx.answer.answer import Answer
from entropix_mlx.answer.interventions.reasoning import ReasoningBudget
from entropix_mlx.answer.writer import Writer
from entropix_mlx.profiles.profile import Profile
from entropix_mlx.step import Origin
from tests.scripted import PROMPT, PROSE, TOKENIZER, Host

START, END = (500, 501), (502, 503)


def tags(begun):
    return SimpleNamespace(
        has_thinking=True,
        think_start_tokens=START,
        think_end_tokens=END,
        rfind_think_start=lambda tokens: 0 if begun else -1,
        rfind_think_end=lambda tokens: -1,
    )


def steps_with(budget, letters, begun=True):
    """Return the steps of an answer; `begun` says whether its prompt has begun the reasoning."""
    host = Host(random.Random(0), (0, letters))
    writer = Writer(TOKENIZER, Profile.load().position_score, 20)
    budgets = [ReasoningBudget(budget, tags(begun), PROMPT)]
    answer = Answer(writer, budgets, context_room=99)
    forced = () if begun else START
    requests, sent = answer.live(PROMPT[-1], forced), None
    with suppress(StopIteration):
        while True:
            sent = host.serve(requests.send(sent))
    return list(answer.steps)


@pytest.mark.parametrize("budget", [0, 1, 7])
def test_the_whole_end_tag_is_put_in(budget):
    steps = steps_with(budget, PROSE)
    assert [step.token for step in steps[budget : budget + 2]] == list(END)
    inserted = [step.index for step in steps if step.origin is Origin.INSERTED]
    assert inserted == [budget, budget + 1]
    steps = steps_with(budget, PROSE, begun=False)
    assert [step.token for step in steps[budget + 2 : budget + 4]] == list(END), "no part of a tag"


def test_a_tag_that_the_model_has_begun_is_completed():
    steps = steps_with(3, (END[0],))
    assert [step.token for step in steps].index(END[1]) <= 4
