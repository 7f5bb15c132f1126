"""The scheduler on a tiny model: side texts, rollouts that are told of, rows that come and go."""

import math

import mlx.core as mx
import numpy as np
import pytest

from entropix_mlx import Settings, stream_generate
from entropix_mlx.answer.answer import Answer
from entropix_mlx.answer.requests import Follow, Keep, Read
from entropix_mlx.engine.cached_text import CachedText
from entropix_mlx.engine.job import Job, begin, prepare
from entropix_mlx.engine.scheduler import Scheduler
from entropix_mlx.engine.slot import Slot
from tests.answer.test_forks import always_branch

PROMPT = list(b"The quick brown fox")
SIDE = tuple(b" Good?")
SETTINGS = Settings(max_tokens=24, seed=1, profile=always_branch(min_gap=4, depth=5))


@pytest.fixture
def tokenizer(byte_tokenizer):
    byte_tokenizer._eos_token_ids = set()
    yield byte_tokenizer
    byte_tokenizer._eos_token_ids = {257}


def make_row(model, tokenizer, settings=SETTINGS, **more):
    job = Job.of_settings(more.pop("prompt", PROMPT), settings.resolved(model.config), **more)
    return begin(model, tokenizer, job, prepare(model, CachedText.empty(model), job))


def run(model, rows):
    scheduler = Scheduler(model)
    for row in rows:
        scheduler.add(row)
    steps = {row: [] for row in rows}
    for row, step in scheduler.run():
        steps[row].append(step)
    return [steps[row] for row in rows]


@pytest.fixture
def with_side_texts(monkeypatch):
    """Let every answer read a side text after each token and each fork; return what it was told."""
    told = []
    live = Answer.live

    def reading(self, last, forced=()):
        inner, sent, texts = live(self, last, forced), None, list(PROMPT)
        lasts = ()
        while True:
            try:
                want = inner.send(sent)
            except StopIteration:
                return
            if isinstance(want, Keep):
                drafts = [tuple(d) for d in told_branches(self)]
                lasts = tuple(draft[-1] for draft in drafts)
                positions = yield Read(SIDE, lasts)
                told.extend(
                    (tuple(texts) + draft, position)
                    for draft, position in zip(drafts, positions, strict=True)
                )
                texts += want.tokens
            sent = yield want
            if isinstance(want, Follow):
                texts += [want.token] if want.logprob is not None else []
                told.append((tuple(texts), (yield Read(SIDE))))

    def told_branches(answer):
        return answer._branching.last_told

    from entropix_mlx.answer.interventions.forks import Branching

    begin_drafts = Branching.begin

    def remember(self, first, before, room):
        drafts = begin_drafts(self, first, before, room)
        type(self).last_told = property(lambda _: [draft.tokens for draft in drafts.all])
        return drafts

    monkeypatch.setattr(Branching, "begin", remember)
    monkeypatch.setattr(Answer, "live", reading)
    yield told
    del Branching.last_told


def test_a_side_text_is_measured_and_leaves_no_trace(tiny_model, tokenizer, with_side_texts):
    (steps,) = run(tiny_model, [make_row(tiny_model, tokenizer)])
    assert len(with_side_texts) > 24
    for text, position in with_side_texts:
        logits = np.array(tiny_model(mx.array([[*text, *SIDE]])).logits[0, -1], np.float64)
        logprobs = logits - logits.max() - math.log(np.exp(logits - logits.max()).sum())
        yes, no = position.given([ord("y"), ord("n")])
        assert yes.logprob == pytest.approx(logprobs[ord("y")], abs=2e-3)
        assert no.logprob == pytest.approx(logprobs[ord("n")], abs=2e-3)
    assert any(step.fork for step in steps)


def test_the_steps_are_those_without_side_texts(tiny_model, tokenizer, request):
    plain = list(stream_generate(tiny_model, tokenizer, PROMPT, SETTINGS))
    request.getfixturevalue("with_side_texts")
    (steps,) = run(tiny_model, [make_row(tiny_model, tokenizer)])
    assert [s.token for s in steps] == [s.token for s in plain]
    assert [s.logprob for s in steps] == pytest.approx([s.logprob for s in plain], abs=1e-4)


def test_rollouts_are_told_of_while_they_grow(tiny_model, tokenizer):
    told = []
    listen = {"on_fork": lambda index, fork: told.append((index, fork))}
    steps = list(stream_generate(tiny_model, tokenizer, PROMPT, SETTINGS, **listen))
    forks = [step for step in steps if step.fork]
    assert sorted({index for index, _ in told}) == [step.index for step in forks]
    for step in forks:
        growth = [fork for index, fork in told if index == step.index]
        longest = [max(len(branch.tokens) for branch in b.branches) for b in growth]
        assert longest == list(range(1, len(longest) + 1))
        assert growth[-1] == step.fork


def test_an_answer_may_join_and_leave_while_others_run(tiny_model, tokenizer):
    alone = [
        [s.token for s in stream_generate(tiny_model, tokenizer, PROMPT[:n], SETTINGS)]
        for n in (5, 12, 19)
    ]
    scheduler, found = Scheduler(tiny_model), {}
    rows = [make_row(tiny_model, tokenizer, prompt=PROMPT[:n]) for n in (5, 12, 19)]
    for number in range(200):
        if number % 7 == 0 and number // 7 < 3:
            scheduler.add(rows[number // 7])
        for row, step in scheduler.advance():
            found.setdefault(row, []).append(step.token)
    assert [found[row] for row in rows] == alone
    assert not scheduler.rows
    assert all(isinstance(row, Slot) and row.ended and row.error is None for row in rows)
