"""Several answers without a model: what they say, which is taken, and that ending some early
changes nothing."""

import math
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from entropix_mlx.answer.selection import SCORE, AnswerSelection, Enough, derived, leads
from entropix_mlx.answer.short_texts import LONGEST, comparable
from entropix_mlx.profiles.confidence import GROUP, AnswerMetrics, lowest_group, score_of
from entropix_mlx.profiles.profile import Profile
from tests.steps import make_step

RULE = Profile.load().answers
CERTAIN = replace(RULE, selection="vote", posterior=1.0)
LOGPROBS = some.lists(some.integers(-8, 0).map(float), min_size=1, max_size=7)
RACES = some.lists(LOGPROBS, min_size=2, max_size=6)
BALLOTS = some.lists(some.sampled_from(["7", "8.", "eight", "", "x" * (LONGEST + 1)]), min_size=2)


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
                candidate.add(steps[len(candidate.steps)])
                candidate.ended = len(candidate.steps) == len(steps)
        for candidate in selection.proceed():
            assert candidate is not selection.candidates[0], "it is shown while it comes"
            candidate.ended = True
        turn += 1
    return selection


def score(steps):
    return score_of(SCORE, AnswerMetrics.of(steps))


@given(some.lists(some.sampled_from("789"), min_size=2, max_size=8))
def test_scores_of_several_answers_are_of_groups_that_say_the_same(said):
    selection = race(CERTAIN, [steps_of([-1.0], text) for text in said])
    complete = [candidate.text for candidate in selection.complete]
    shares = np.array(list(Counter(complete).values())) / len(complete)
    if len(complete) > 1:
        assert selection.scores["semantic_entropy"] == pytest.approx(
            -(shares * np.log(shares)).sum()
        )
        assert selection.scores["agreement"] == pytest.approx(shares.max())
    else:
        assert selection.scores == {}


@given(RACES)
def test_the_best_answer_is_chosen_as_if_all_had_been_completed(race_of):
    answers = [steps_of(logprobs) for logprobs in race_of]
    selection = race(RULE, answers)
    best = max(score(steps) for steps in answers)
    assert selection.chosen.score == pytest.approx(best) == score(selection.chosen.steps)
    assert selection.chosen.complete
    assert selection.forward_tokens <= sum(map(len, answers))
    assert selection.to_dict()["rests_on"] == "tokens"
    cut = len(selection.complete) < len(answers)
    assert selection.stopped == (Enough.DECIDED if cut else Enough.ALL)


@given(BALLOTS)
def test_a_vote_that_ends_when_it_is_certain_elects_whom_all_votes_elect(texts):
    answers = [steps_of([-1.0] * (1 + n % 3), text) for n, text in enumerate(texts)]
    selection = race(CERTAIN, answers)
    votes = Counter({"8.": "8"}.get(text, text) for text in texts if text)
    votes = {text: 1 if len(text) > LONGEST else number for text, number in votes.items()}
    if votes:
        said = {"8.": "8"}.get(selection.chosen.text, selection.chosen.text)
        assert votes[said] == max(votes.values())
        assert len(selection.agreeing) <= votes[said]
    rests_on = selection.to_dict()["rests_on"]
    assert rests_on == "agreement" or len(selection.complete) == 1


def test_a_vote_ends_when_its_leader_hardly_loses():
    short, long = steps_of([-1.0], "7"), steps_of([-1.0] * 9, "8")
    record = race(
        replace(CERTAIN, posterior=0.9), [short, short, short, long, long, long]
    ).to_dict()
    assert (record["chosen"], record["agreeing"], record["complete"]) == (0, 3, 3)
    assert (record["stopped"], record["confidence"]) == (Enough.DECIDED, 1.0)
    assert record["forward_tokens"] == 3 + 3 * (1 + 1), "the pass under way counts"


def test_the_best_of_equals_is_the_one_that_is_chosen():
    answers = [steps_of([-3.0], "8"), steps_of([-2.0], "7"), steps_of([-1.0], " 7.0 ")]
    assert race(CERTAIN, answers).to_dict()["chosen"] == 2
    tied = [steps_of([-3.0], "8"), steps_of([-2.0], "7")]
    assert race(CERTAIN, tied).to_dict()["chosen"] == 1, "the higher score decides a tie"


@pytest.mark.parametrize(("first", "stopped"), [(-0.1, Enough.SURE), (-5, Enough.ALL)])
def test_the_gate(first, stopped):
    rule = replace(RULE, threshold=-1.0, count=3)
    answers = [steps_of([first, first]), steps_of([-0.5]), steps_of([-9.0])]
    selection = race(rule, answers, count="auto")
    assert selection.stopped == stopped
    assert len(selection.candidates) == (1 if stopped == Enough.SURE else 3)
    assert selection.to_dict()["chosen"] == int(first == -5)


@given(RACES, some.integers(0, 8))
def test_an_interrupt_loses_no_complete_answer(race_of, until):
    answers = [steps_of(logprobs, "7") for logprobs in race_of]
    selection = race(RULE, answers, until=until)
    assert selection.chosen in (selection.complete or selection.candidates[:1])
    for one in selection.candidates:
        assert len(one.steps) == one.forward_tokens - (bool(one.steps) and not one.complete)
    if not selection.complete:
        assert selection.stopped == Enough.INTERRUPTED
        assert not selection.agreeing
    record = selection.to_dict()
    assert [one["text"] for one in record["answers"]] == [c.text for c in selection.candidates]


@given(some.integers(0, 30), some.integers(0, 30))
def test_the_probability_of_a_lead(first, second):
    # The integral of the density of Beta(first + 1, second + 1) from 1/2 to 1, term by term.
    total = first + second + 1
    density = total * math.comb(first + second, first)
    terms = (
        Fraction((-1) ** k * math.comb(second, k), first + k + 1)
        * (1 - Fraction(1, 2 ** (first + k + 1)))
        for k in range(second + 1)
    )
    assert leads(first, second) == pytest.approx(float(density * sum(terms)))
    assert leads(first, second) + leads(second, first) == pytest.approx(1)


@given(some.lists(some.floats(-20, 0), min_size=1, max_size=30))
def test_the_lowest_group(logprobs):
    means = [math.fsum(logprobs[i : i + GROUP]) / GROUP for i in range(len(logprobs) - GROUP + 1)]
    assert lowest_group(logprobs) == pytest.approx(min(means or [sum(logprobs) / len(logprobs)]))


@pytest.mark.parametrize(
    "texts",
    [
        ["42", " 42.", "42.0", "17 + 25 = 42", "17+25=42."],
        ["1,000 apples", "1000 Apples."],
        ["-3", "−3"],
        ["B", "(b)", "b.", "B) Paris"],
        ["Paris", " paris.", "“Paris”", "The Paris"],
        ["Port-au-Prince", "port au prince!"],
        ['{"a": 1, "b": ["X"]}', '```json\n{"b": ["x"], "a": 1.0}\n```'],
        ["", "  ", "\n", "."],
    ],
)
def test_texts_that_say_the_same(texts):
    assert len({comparable(text) for text in texts}) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("3", "-3"),
        ("1.5", "1.7"),
        ("7 days", "7 weeks"),
        ("Bonn in 1950", "Berlin in 1950"),
        ("Yes, he has 7", "Yes, he has 8"),
        ("A dog", "A cat"),
        ("A. Lincoln", "A. Johnson"),
        ("1234567890123456", "1234567890123457"),
        ('{"a": 1}', '{"a": 2}'),
        ('{"a": true}', '{"a": 1}'),
        ("[1, 2]", "[2, 1]"),
    ],
)
def test_texts_that_say_something_else(one, other):
    assert comparable(one) != comparable(other)


@given(some.text(max_size=60))
def test_case_and_space_do_not_matter(text):
    assert comparable(text) == comparable(f"  {text} ")
    assert comparable(text + "\n" * 3) == comparable(text)


def test_what_is_too_long_says_nothing_that_another_says():
    assert comparable("word " * LONGEST) is None
    assert comparable("[" * 100_000) is None
    for depth in (300, 600, 4_000):
        comparable("[" * depth + "]" * depth)
    assert comparable("9" * LONGEST) == "9" * LONGEST


def test_seeds_follow_from_the_first():
    seeds = {derived(seed, number) for seed in range(40) for number in range(1, 8)}
    assert len(seeds) == 40 * 7
    assert derived(5, 2) == derived(5, 2)
