"""A backend's thread without any front end: jobs in order, each with a cancel token of its own."""

import queue
from dataclasses import replace

import pytest

from entropix_mlx import Profile, Settings
from entropix_mlx.api.batch import BatchAnswer
from entropix_mlx.backends import events
from entropix_mlx.backends.base import BackendThread
from entropix_mlx.backends.events import CancelToken, UserMessage
from entropix_mlx.backends.local import LocalBackend
from entropix_mlx.errors import ModelNotFoundError, NonFiniteLogitsError
from tests.conftest import make_byte_tokenizer, make_tiny_model

SIDES = tuple(Settings(sampler=name, max_tokens=40, seed=3) for name in ("entropix", "greedy"))


def load_tiny():
    tokenizer = make_byte_tokenizer()
    tokenizer._eos_token_ids = set()
    return make_tiny_model(max_position_embeddings=4096), tokenizer


class Heard:
    """Collects the events of a thread."""

    def __init__(self):
        self.events = []
        self._queue = queue.Queue()

    def __call__(self, event):
        self._queue.put(event)

    def of(self, kind):
        return [event for event in self.events if isinstance(event, kind)]

    def until(self, kind, **fields):
        """Return the next event of a kind with such fields, and keep those before it."""
        while True:
            event = self._queue.get(timeout=30)
            self.events.append(event)
            if isinstance(event, kind) and all(
                getattr(event, name) is value for name, value in fields.items()
            ):
                return event


@pytest.fixture
def started():
    threads = []

    def start(load=load_tiny, load_named=None, **settings):
        heard = Heard()
        own = Settings(**{"max_tokens": 6, "seed": 1} | settings)
        thread = BackendThread(LocalBackend("tiny", load, own, load_named=load_named), heard)
        threads.append(thread)
        thread.start()
        return thread, heard

    yield start
    for thread in threads:
        thread.stop()
        thread.join()


def test_an_answer_is_reported_in_order(started):
    thread, heard = started()
    cancel = CancelToken()
    thread.ask(UserMessage("hi"), cancel)
    assert heard.until(events.AnswerEnded) == events.AnswerEnded(cancel)
    assert list(dict.fromkeys(type(event) for event in heard.events)) == [
        events.Loaded,
        events.ConversationChanged,
        events.Prefilled,
        events.StepsArrived,
        events.AnswerEnded,
    ]
    steps = [step for event in heard.of(events.StepsArrived) for step in event.steps]
    assert len(steps) == 6
    last = heard.of(events.ConversationChanged)[-1]
    assert last.conversation.turns[0].answer.steps == steps
    assert last.context_used > 6


def test_a_cancel_that_comes_before_the_answer_begins_is_not_lost(started):
    thread, heard = started(max_tokens=3000)
    cancel = CancelToken()
    cancel.set()
    thread.ask(UserMessage("hi"), cancel)
    heard.until(events.AnswerEnded, cancel=cancel)
    assert not heard.of(events.StepsArrived)


def test_a_cancel_ends_one_job_and_no_other(started):
    thread, heard = started(max_tokens=3000)
    first, second = CancelToken(), CancelToken()
    thread.ask(UserMessage("hi"), first)
    thread.submit(lambda session, cancel: session.regenerate(cancel=cancel), second)
    heard.until(events.StepsArrived)
    first.set()
    heard.until(events.AnswerEnded, cancel=first)
    heard.until(events.StepsArrived)
    second.set()
    heard.until(events.AnswerEnded, cancel=second)


def test_a_model_that_cannot_be_loaded_leaves_the_one_before(started):
    def load_named(name):
        if name == "absent":
            raise ModelNotFoundError("no model 'absent'")
        return load_tiny()

    thread, heard = started(load_named=load_named)
    thread.ask(UserMessage("hi"), CancelToken())
    heard.until(events.AnswerEnded)
    for name, shown in (("absent", "tiny"), ("other", "other"), ("absent", "other")):
        thread.switch(name, CancelToken())
        assert heard.until(events.Loaded).model == shown
        assert bool(heard.until(events.AnswerEnded).error) is (name == "absent")
    thread.ask(UserMessage("and?"), CancelToken())
    assert heard.until(events.AnswerEnded).error is None
    last = heard.of(events.ConversationChanged)[-1]
    assert [turn.question for turn in last.conversation.turns] == ["hi", "and?"]


def test_another_model_can_be_loaded_where_the_first_cannot(started):
    def load():
        raise MemoryError("too large")

    thread, heard = started(load, lambda name: load_tiny())
    assert "MemoryError" in heard.until(events.LoadFailed).reason
    question = UserMessage("hi")
    thread.ask(question, CancelToken())
    ended = heard.until(events.AnswerEnded)
    assert ended.error
    assert ended.refused is question
    thread.switch("other", CancelToken())
    assert heard.until(events.AnswerEnded).error is None
    thread.ask(UserMessage("hi"), CancelToken())
    assert heard.until(events.AnswerEnded).error is None


def duel_of(heard):
    """Return what came of each side of a duel: its steps, whether it ended and its error."""
    arrived = heard.of(events.DuelStepsArrived)
    steps = [[s for e in arrived if e.side == side for s in e.steps] for side in (0, 1)]
    ends = {event.side: event.error for event in arrived if event.ended}
    return steps, ends, [event.side for event in arrived]


def test_both_sides_of_a_duel_grow_together(started, monkeypatch):
    monkeypatch.setattr(events, "BATCH_SECONDS", 0.0)
    thread, heard = started()
    cancel = CancelToken()
    thread.duel(UserMessage("hi"), SIDES, cancel)
    assert heard.until(events.AnswerEnded) == events.AnswerEnded(cancel)
    steps, ends, order = duel_of(heard)
    assert [len(side) for side in steps] == [40, 40]
    assert ends == {0: None, 1: None}
    (began,) = heard.of(events.DuelBegan)
    assert [(h.sampler, h.seed, h.model) for h in began.headers] == [
        ("entropix", 3, "tiny"),
        ("greedy", 3, "tiny"),
    ]
    assert began.headers[0].messages == [{"role": "user", "content": "hi"}]
    assert began.headers[0].prompt_tokens > 2
    assert order.index(1) < 3, "neither side waits for the other"
    assert {step.strategy for step in steps[1]} == {"argmax"}


def test_a_side_that_fails_leaves_the_other_alone(started):
    thread, heard = started()
    bad = Profile.load().replace({"think": {"text": [10**6]}})
    thread.duel(UserMessage("hi"), (SIDES[1], replace(SIDES[0], profile=bad)), CancelToken())
    assert heard.until(events.AnswerEnded).error is None
    steps, ends, _ = duel_of(heard)
    assert [len(side) for side in steps] == [40, 0]
    assert ends[0] is None
    assert ends[1]


class HalfBatch:
    """A batch of two answers, of which the first fails after two steps."""

    def __init__(self, steps):
        self.answers = [BatchAnswer(0), BatchAnswer(1)]
        self._steps = steps

    def __iter__(self):
        for index, step in enumerate(self._steps):
            if index < 2:
                yield 0, step
            else:
                self.answers[0].error = NonFiniteLogitsError("the logits are NaN")
            yield 1, step

    def close(self):
        pass


def test_a_side_that_fails_in_its_middle_keeps_its_steps(started, monkeypatch):
    thread, heard = started()
    thread.ask(UserMessage("hi"), CancelToken())
    heard.until(events.AnswerEnded)
    steps = heard.of(events.ConversationChanged)[-1].conversation.last.answer.steps
    monkeypatch.setattr(
        "entropix_mlx.api.batch.batch_generate", lambda *_, **options: HalfBatch(steps)
    )
    thread.duel(UserMessage("hi"), SIDES, CancelToken())
    assert heard.until(events.AnswerEnded).error is None
    found, ends, _ = duel_of(heard)
    assert found == [steps[:2], steps]
    assert ends == {0: "the logits are NaN", 1: None}


def test_a_cancel_ends_both_sides_of_a_duel(started):
    thread, heard = started()
    cancel = CancelToken()
    thread.duel(UserMessage("hi"), tuple(replace(s, max_tokens=3000) for s in SIDES), cancel)
    heard.until(events.DuelStepsArrived)
    cancel.set()
    heard.until(events.AnswerEnded, cancel=cancel)
    steps, ends, _ = duel_of(heard)
    assert all(len(side) < 3000 for side in steps)
    assert not ends
