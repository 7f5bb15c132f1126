"""A backend's thread without any front end: jobs in order, each with a cancel token of its own."""

import queue

import pytest

from entropix_mlx import Settings
from entropix_mlx.chat import events
from entropix_mlx.chat.events import CancelToken, UserMessage
from entropix_mlx.chat.local import LocalSource
from entropix_mlx.chat.session import ChatSession
from entropix_mlx.chat.thread import ChatThread
from entropix_mlx.errors import ModelNotFoundError
from tests.conftest import make_byte_tokenizer, make_tiny_model


def load_tiny():
    tokenizer = make_byte_tokenizer()
    tokenizer._eos_token_ids = set()
    return make_tiny_model(max_position_embeddings=4096), tokenizer


def ask(thread, question, cancel):
    thread.submit(
        lambda session, cancel: session.send(question.text, question.turn, cancel=cancel),
        cancel,
        question,
    )


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
        source = LocalSource("tiny", load, load_named=load_named)
        thread = ChatThread(ChatSession(source, own), heard)
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
    ask(thread, UserMessage("hi"), cancel)
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
    assert last.conversation.context_used > 6


def test_a_cancel_that_comes_before_the_answer_begins_is_not_lost(started):
    thread, heard = started(max_tokens=3000)
    cancel = CancelToken()
    cancel.set()
    ask(thread, UserMessage("hi"), cancel)
    heard.until(events.AnswerEnded, cancel=cancel)
    assert not heard.of(events.StepsArrived)


def test_a_cancel_ends_one_job_and_no_other(started):
    thread, heard = started(max_tokens=3000)
    first, second = CancelToken(), CancelToken()
    ask(thread, UserMessage("hi"), first)
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
    ask(thread, UserMessage("hi"), CancelToken())
    heard.until(events.AnswerEnded)
    for name, shown in (("absent", "tiny"), ("other", "other"), ("absent", "other")):
        thread.switch(name, CancelToken())
        assert heard.until(events.Loaded).model == shown
        assert bool(heard.until(events.AnswerEnded).error) is (name == "absent")
    ask(thread, UserMessage("and?"), CancelToken())
    assert heard.until(events.AnswerEnded).error is None
    last = heard.of(events.ConversationChanged)[-1]
    assert [turn.question for turn in last.conversation.turns] == ["hi", "and?"]


def test_another_model_can_be_loaded_where_the_first_cannot(started):
    def load():
        raise MemoryError("too large")

    thread, heard = started(load, lambda name: load_tiny())
    assert "MemoryError" in heard.until(events.LoadFailed).reason
    question = UserMessage("hi")
    ask(thread, question, CancelToken())
    ended = heard.until(events.AnswerEnded)
    assert ended.error
    assert ended.refused is question
    thread.switch("other", CancelToken())
    assert heard.until(events.AnswerEnded).error is None
    ask(thread, UserMessage("hi"), CancelToken())
    assert heard.until(events.AnswerEnded).error is None
