"""Answers that begin inside one another, on a tiny model: each is exactly the text it says."""

from dataclasses import replace
from threading import Event

import pytest

from entropix_mlx import Session, Settings, batch_generate, stream_generate
from entropix_mlx.answer.selection import Enough
from entropix_mlx.api.generate import stream_answers
from entropix_mlx.api.score import stream_score
from entropix_mlx.step import Origin
from tests.conftest import make_tiny_model

PROMPT = list(b"The quick brown fox")
VOTE = {"answers": {"selection": "vote", "posterior": 1.0}}
LEAVES = {"branch": {"mode": "leaves"}}
ANYWHERE = {"branch": {"mode": "answers", "trigger": "chance", "trigger_at": 1.0, "width": 3}}
SOMEWHERE = {"branch": {"mode": "answers", "trigger": "chance", "trigger_at": 0.2, "width": 3}}
TREE = Settings(seed=3, max_tokens=12, sampler="entropix", answers=9, changes=VOTE | LEAVES)


@pytest.fixture
def ask(tiny_model, endless):
    def ask(settings=TREE, **options):
        several, steps = stream_answers(tiny_model, endless, PROMPT, settings, **options)
        for _ in steps:
            pass
        return several

    return ask


def tokens_of(steps):
    return [step.token for step in steps]


def changed(branch, **more):
    return replace(TREE, changes=VOTE | branch, **more)


@pytest.mark.parametrize(
    "settings",
    [
        TREE,
        changed(ANYWHERE),
        changed(SOMEWHERE, sampler="temperature", temperature=1.2),
        replace(TREE, speculation=3, sampler="greedy"),
        replace(TREE, frequency_penalty=0.4, stop=(" so",)),
        replace(TREE, constraint={"regex": "[a-f ]*"}),
    ],
)
def test_each_answer_is_a_reading_of_its_text(ask, tiny_model, endless, settings):
    several = ask(settings)
    assert len(several.candidates) == 9
    for candidate in several.complete:
        tokens = tokens_of(candidate.steps)
        read = stream_score(tiny_model, endless, tokens, sampler="greedy", after=PROMPT)
        for found, expected in zip(candidate.steps, read, strict=True):
            assert found.logprob == pytest.approx(expected.logprob, abs=1e-3)
            assert found.metrics == pytest.approx(expected.metrics, abs=1e-3)
    said = [tuple(tokens_of(one.steps)) for one in several.candidates]
    assert len(set(said)) == len(said), "no two answers have the same tokens"


def test_an_answer_goes_on_as_if_its_first_token_had_been_drawn(ask, tiny_model, endless):
    for candidate in ask().candidates[1:]:
        begun = tokens_of(candidate.steps)[: candidate.shared + 1]
        own = replace(TREE, answers=1, changes={}, max_tokens=12 - len(begun))
        rest = candidate.steps[len(begun) :]
        assert candidate.steps[candidate.shared].origin is Origin.BRANCH
        assert len(rest) == own.max_tokens
        if not rest:
            continue
        alone = stream_generate(tiny_model, endless, [*PROMPT, *begun], own, pipelined=False)
        assert rest[0].metrics == pytest.approx(next(alone).metrics, abs=1e-3)


def test_the_first_answer_is_what_it_is_alone(ask, tiny_model, endless):
    alone = stream_generate(tiny_model, endless, PROMPT, replace(TREE, answers=1))
    assert tokens_of(ask().candidates[0].steps) == tokens_of(alone)


def test_the_most_probable_leaf_comes_first(ask):
    several = ask(replace(TREE, answers=3))
    first = several.candidates[0].steps
    paths, path = [], 0.0
    for step in first:
        paths += [path + a.logprob for a in step.top_logprobs if a.token != step.token]
        path += step.logprob
    assert several.candidates[1].leaf.path_logprob == pytest.approx(max(paths))


def test_places_go_from_left_to_right(ask):
    leaves = [one.leaf for one in ask(changed(ANYWHERE, answers=5)).candidates[1:]]
    first_round = leaves[:2]
    assert [(leaf.answer, leaf.place) for leaf in first_round] == [(0, 0), (0, 0)]


def test_shared_tokens_are_computed_once(ask):
    several = ask()
    drawn = [one for one in several.candidates if one.leaf is not None]
    assert all(one.forward_tokens <= len(one.steps) - one.shared + 1 for one in drawn)
    assert several.to_dict()["answers"][1]["begins"]["answer"] == 0


def test_an_answer_that_cannot_win_is_not_begun(ask):
    best = ask(replace(TREE, changes=LEAVES))
    scores = [one.score for one in best.complete]
    assert best.chosen.score == max(scores)
    assert best.forward_tokens < ask().forward_tokens


def test_without_a_place_the_first_answer_is_the_only_one(ask):
    nowhere = {"branch": ANYWHERE["branch"] | {"trigger_at": 0.0}}
    several = ask(changed(nowhere))
    assert (len(several.candidates), several.stopped) == (1, Enough.ALL)


def test_cancelled_in_the_middle_complete_answers_stay(tiny_model, endless):
    cancel = Event()
    several, steps = stream_answers(tiny_model, endless, PROMPT, TREE, cancel=cancel)
    for count, _ in enumerate(steps):
        if count == 20:
            cancel.set()
    assert several.stopped is Enough.INTERRUPTED
    assert several.complete[0] is several.candidates[0]
    assert len(several.candidates[0].steps) == TREE.max_tokens


def test_a_batch_has_the_same_trees(ask, tiny_model, endless):
    alone = [tokens_of(one.steps) for one in ask().candidates]
    for answer in batch_generate(tiny_model, endless, [PROMPT, PROMPT], TREE).finish():
        found = [tokens_of(one.steps) for one in answer.several.candidates]
        assert [one[:4] for one in found] == [one[:4] for one in alone]
        assert len(found) == len(alone)


def test_a_session_goes_on_from_an_answer_of_the_tree(word_tokenizer):
    model = make_tiny_model(max_position_embeddings=4096)
    session = Session(model, word_tokenizer, replace(TREE, max_tokens=6, changes=LEAVES))
    list(session.send("Hello"))
    turn = session.conversation.last
    assert len(turn.answers) == len(session.several.candidates) > 1
    cached = session.cached_tokens
    assert list(session.send("And then?"))
    assert session.conversation.messages[1]["content"] == turn.answer.text
    assert session.cached_tokens > cached
