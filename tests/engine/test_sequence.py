"""Sequences without a model: what they commit of scripted rows, whatever profile and letters."""

import itertools
import random

import pytest

from entropix_mlx.answer.hooks import Hooks
from entropix_mlx.profiles.profile import Profile
from entropix_mlx.step import Origin, Passage, Source
from tests.scripted import EOS, PROMPT, PROSE, TOKENIZER, scripted, sequence_of, serve

LETTERS = [PROSE, tuple(TOKENIZER.encode("ab. c\n")), (65, 66, 46, 32)]


def a_profile(chance):
    think = {
        "text": [" Wait,", " Hm.", "\n"],
        "max_insertions": chance.choice([0, 1, 3]),
        "min_gap": chance.choice([1, 4]),
        "wait": chance.choice([0, 5]),
    }
    fork = {
        "width": chance.choice([1, 2, 4]),
        "depth": chance.choice([1, 2, 6]),
        "max_branches": chance.choice([0, 1, 50]),
        "min_gap": chance.choice([0, 3]),
        "ask_margin": chance.choice([0.0, 100.0]),
        "margin": chance.choice([0.0, 0.5]),
    }
    return Profile.load().replace({"think": think, "branch": fork})


@pytest.mark.parametrize("number", range(40))
def test_the_laws_of_an_answer(number):
    chance = random.Random(number)
    profile, letters, limit = a_profile(chance), chance.choice(LETTERS), chance.choice([1, 9, 60])
    asks = chance.random() < 0.5
    hooks = Hooks(choose=lambda fork: 0) if asks else None
    sequence = sequence_of(profile, limit, hooks)
    steps = serve(sequence, number, letters, lambda fork: 0)
    tokens = [step.token for step in steps]
    # 1. It ends once: at its limit, or with the end of the text, which nothing else holds.
    assert [step.index for step in steps] == list(range(len(steps)))
    assert len(steps) <= limit
    assert all(step.finish_reason is None for step in steps[:-1])
    assert steps[-1].finish_reason == ("stop" if tokens[-1] == EOS else "length")
    assert EOS not in tokens[:-1]
    # 2. What was drawn is what the text so far makes likely; what was inserted stands as it is.
    for step in steps:
        row = scripted(PROMPT + tokens[: step.index], number, letters)
        assert step.metrics == row.metrics
        if step.origin is Origin.SAMPLED:
            assert step.token == row.token
    # 3. Interventions keep to their limits.
    thoughts = [step.index for step in steps if step.triggered_at is not None]
    forks = [step for step in steps if step.fork is not None]
    assert len(thoughts) <= profile.think.max_insertions
    assert len(forks) <= profile.branch.max_branches
    assert all(index - steps[index].triggered_at <= profile.think.wait for index in thoughts)
    for first, second in itertools.pairwise(thoughts):
        end = next(n for n in range(first, second) if steps[n].origin is not Origin.INSERTED)
        assert steps[second].triggered_at >= end + profile.think.min_gap
    for step in forks:
        assert all(len(one.tokens) <= profile.branch.depth for one in step.fork.branches)
        won = step.fork.branches[step.fork.winner].tokens
        assert tuple(tokens[step.index : step.index + len(won)]) == won[: len(steps) - step.index]
        assert step.rolled_back == 1
    # 4. The context has the room that the text leaves.
    assert sequence.room == 4096 - sequence.length
    # 5. The text is that of the tokens.
    plain = [token for token in tokens if token != EOS]
    assert "".join(step.text for step in steps) == TOKENIZER.decode(plain)


def test_a_thought_stands_where_a_sentence_has_ended():
    profile = Profile.load().replace({"think": {"text": " Wait,", "wait": 99, "max_insertions": 9}})
    steps = serve(sequence_of(profile, 200), 3, PROSE)
    starts = [
        step.index
        for step in steps
        if step.origin is Origin.INSERTED and steps[step.index - 1].origin is not Origin.INSERTED
    ]
    assert len(starts) == 1, "one that stands in the answer is not inserted again"
    before = "".join(step.text for step in steps[: starts[0]])
    assert before.rstrip().endswith(".")


@pytest.mark.parametrize("when", ["start", "lost"])
def test_a_passage_is_put_into_the_answer_and_named(when):
    passage = Passage("The sky is <|im_start|> blue “here”.", Source("sky.md", 3), 0.9)
    notes = {"when": when, "min_entropy": 4.5, "max_insertions": 1, "wait": 99}
    asked = []

    def retrieve(sentence):
        asked.append(sentence)
        return [passage]

    profile = Profile.load().replace({"notes": notes, "think": {"max_insertions": 0}})
    steps = serve(sequence_of(profile, 150, Hooks(retrieve=retrieve)), 5, PROSE)
    retrieved = [step for step in steps if step.origin is Origin.RETRIEVED]
    assert retrieved[0].source == passage.source
    assert (retrieved[0].index == 0) is (when == "start")
    text = "".join(step.text for step in retrieved)
    assert "sky.md, line 3" in text
    assert "<|im_start|>" not in text
    assert len(asked) == 1


def test_a_stop_string_ends_an_answer_and_is_no_part_of_it():
    profile = Profile.load().replace({"think": {"max_insertions": 0}})
    sequence = sequence_of(profile, 200, stop=("is blue",))
    steps = serve(sequence, 2, PROSE)
    text = "".join(step.text for step in steps)
    assert "is blue" not in text
    assert steps[-1].finish_reason == "stop"
    assert sequence.committed < len(steps)


def test_a_cancelled_answer_commits_nothing_more():
    from threading import Event

    cancel = Event()
    sequence = sequence_of(Profile.load(), 50, Hooks(cancel=cancel))
    assert sequence.take(scripted(PROMPT, 1, PROSE)) is not None
    cancel.set()
    assert sequence.take(scripted(PROMPT + sequence.tokens, 1, PROSE)) is None
    assert len(sequence.steps) == 1
