"""The model's thread without any front end: jobs in order, each with a cancel token of its own."""

import queue

import pytest

from entropix_mlx import Settings
from entropix_mlx.serving import events
from entropix_mlx.serving.events import Question, Token
from entropix_mlx.serving.worker import Chat, ModelThread
from tests.conftest import make_byte_tokenizer, make_tiny_model


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

    def start(load=load_tiny, **settings):
        heard = Heard()
        chat = Chat("tiny", load, Settings(**{"max_tokens": 6, "seed": 1} | settings))
        thread = ModelThread(chat, heard)
        threads.append(thread)
        thread.start()
        return thread, heard

    yield start
    for thread in threads:
        thread.stop()
        thread.join()


def test_an_answer_is_reported_in_order(started):
    thread, heard = started()
    cancel = Token()
    thread.ask(Question("hi"), cancel)
    ended = heard.until(events.AnswerEnded)
    assert ended == events.AnswerEnded(cancel)
    kinds = list(dict.fromkeys(type(event) for event in heard.events))
    assert kinds == [
        events.Loaded,
        events.ConversationChanged,
        events.Prefilled,
        events.StepsArrived,
        events.AnswerEnded,
    ]
    steps = [s for e in heard.events if isinstance(e, events.StepsArrived) for s in e.steps]
    assert len(steps) == 6
    last = [e for e in heard.events if isinstance(e, events.ConversationChanged)][-1]
    assert last.conversation.turns[0].answer.steps == steps


def test_a_cancel_that_comes_before_the_answer_begins_is_not_lost(started):
    thread, heard = started(max_tokens=3000)
    cancel = Token()
    cancel.set()
    thread.ask(Question("hi"), cancel)
    heard.until(events.AnswerEnded, cancel=cancel)
    assert not [event for event in heard.events if isinstance(event, events.StepsArrived)]


def test_a_cancel_ends_one_job_and_no_other(started):
    thread, heard = started(max_tokens=3000)
    first, second = Token(), Token()
    thread.ask(Question("hi"), first)
    thread.submit(lambda session, cancel: session.regenerate(cancel=cancel), second)
    heard.until(events.StepsArrived)
    first.set()
    heard.until(events.AnswerEnded, cancel=first)
    heard.until(events.StepsArrived)
    second.set()
    heard.until(events.AnswerEnded, cancel=second)


def test_what_was_refused_comes_back(started):
    thread, heard = started()
    question = Question(" ")
    thread.ask(question, Token())
    ended = heard.until(events.AnswerEnded)
    assert ended.refused is question
    assert "empty" in ended.error


def test_a_model_that_cannot_be_loaded_is_reported(started):
    def load():
        raise MemoryError("too large")

    _, heard = started(load)
    assert heard.until(events.LoadFailed).reason == "unexpected MemoryError: too large"
