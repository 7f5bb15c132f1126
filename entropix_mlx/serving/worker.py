"""The one thread that uses MLX: it loads, caches and generates, and reports what it did as events.

MLX's streams are thread-local, so everything that touches an array happens on this thread, one job
after the other. Only Python scalars, strings and records of them leave it.

Who gives it a job also gives it a cancel token, a ``threading.Event``: set before the job begins,
while it reads the prompt or between two tokens, it ends that job and no other.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..chat.conversation import Conversation
from ..errors import EntropixError
from ..profiles.choice import resolve
from ..settings import Settings
from ..step import Branch, Step
from ..traces.trace import TraceFolder
from . import events
from .events import Event, Question, Token

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ..chat.session import Session
    from ..models.llama import Model

BATCH_SECONDS = 1 / 15
"""Steps are reported in batches, one in this time: a screen does not need more, and each event
costs time."""

JOIN_SECONDS = 5.0
"""How long `join` waits for a cancelled answer, which ends within one token or prompt chunk."""
JOIN_LOADING_SECONDS = 0.5
"""How long `join` waits for a model that is still loading, which nothing can interrupt."""
REPLY_SECONDS = 0.1
"""How often the cancel token is looked at while the user chooses a way at a fork."""

Load = Callable[[], "tuple[Model, TokenizerWrapper]"]
Action = Callable[["Session", Token], Iterator[Step] | None]
"""What to do with the session; a cancel token to pass on is the second argument."""


@dataclass(frozen=True)
class Chat:
    """What a chat begins with."""

    model: str
    """The model's name as the user knows it."""
    load: Load
    """Returns the model and its tokenizer; called on the model's thread."""
    settings: Settings
    """How to generate at first."""
    system_prompt: str | None = None
    """Instructions that precede the conversation."""
    ask: bool = False
    """Whether the user is asked at forks."""
    traces: TraceFolder | None = None
    """Where each answer is recorded."""


class ModelThread:
    """Runs jobs on a model, in the order in which they were given."""

    def __init__(self, chat: Chat, report: Callable[[Event], None]) -> None:
        """Set up; `start` begins to load.

        Args:
            chat: what to load, and how the conversation begins.
            report: takes each event, on the model's thread.
        """
        self._chat = chat
        self._report = report
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._stopping = False
        self._loaded = threading.Event()
        self._cancel = Token()  # that of the running job
        self._session: Session
        self._model: Model
        self._tokenizer: TokenizerWrapper
        self._thread = threading.Thread(target=self._run, name="model", daemon=True)

    def start(self) -> None:
        """Begin to load the model."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the running job, and drop the jobs that wait."""
        self._stopping = True
        self._jobs.put(None)

    def join(self) -> None:
        """Wait for the end of the thread after `stop`, but not for long.

        A thread that is inside MLX when the interpreter ends aborts the process: see `alive`.
        """
        if self._thread.is_alive():
            self._thread.join(JOIN_SECONDS if self._loaded.is_set() else JOIN_LOADING_SECONDS)

    @property
    def alive(self) -> bool:
        """Whether the thread runs; if so after `join`, leave the process by ``os._exit``."""
        return self._thread.is_alive()

    def submit(self, action: Action, cancel: Token) -> None:
        """Do something with the session; the steps that it returns are read and reported."""
        self._jobs.put(lambda: self._answer(action, cancel))

    def ask(self, question: Question, cancel: Token) -> None:
        """Ask a question; if it is refused, it comes back with the end of the answer."""

        def send(session: Session, cancel: Token) -> Iterator[Step]:
            return session.send(question.text, question.turn, cancel=cancel)

        self._jobs.put(lambda: self._answer(send, cancel, question))

    def configure(self, settings: Settings, ask: bool) -> None:
        """Use other settings from the next answer on."""

        def job() -> None:
            self._session.settings = settings
            self._session.choose = self._choose if ask else None

        self._jobs.put(job)

    def duel(self, question: Question, sides: tuple[Settings, Settings], cancel: Token) -> None:
        """Answer a question with one setting after the other; the conversation does not change.

        Args:
            question: what both sides answer, in the place of its turn or after the last one.
            sides: the settings of each.
            cancel: also comes back with each of the duel's events.
        """
        self._jobs.put(lambda: self._duel(question, sides, cancel))

    def _run(self) -> None:
        try:
            self._open_session()
        except Exception as error:  # without an event the front end would wait for ever
            self._report(events.LoadFailed(_explain(error)))
            return
        while (job := self._jobs.get()) is not None and not self._stopping:
            job()
        self._session.close()

    def _open_session(self) -> None:
        from ..chat.session import Session

        self._model, self._tokenizer = self._chat.load()
        self._session = Session(
            self._model,
            self._tokenizer,
            self._chat.settings,
            system_prompt=self._chat.system_prompt,
            on_prefill=lambda done, total: self._report(events.Prefilled(done, total)),
            on_drop=lambda count: self._report(events.TurnsDropped(count)),
            choose=self._choose if self._chat.ask else None,
            traces=self._chat.traces,
        )
        config, settings = self._model.config, self._chat.settings
        self._loaded.set()
        profile = resolve(settings.profile, config, settings.changes)
        self._report(events.Loaded(config.max_position_embeddings, profile))

    def _answer(self, action: Action, cancel: Token, question: Question | None = None) -> None:
        self._cancel = cancel
        error, refused = None, question
        try:
            # Closing the session also ends a trace, which may fail as anything else here.
            with contextlib.closing(self._session):
                steps = action(self._session, cancel)
                refused = None
                self._report_conversation()
                for batch in _batches(steps or ()):
                    self._report(events.StepsArrived(batch))
        except Exception as fault:
            error = _explain(fault)
        self._report_conversation()
        self._report(events.AnswerEnded(cancel, error, refused))

    def _choose(self, branch: Branch) -> int:
        """Ask the user, and wait; a cancel takes the best way."""
        replies: queue.SimpleQueue[int] = queue.SimpleQueue()
        if not self._cancel.is_set():
            self._report(events.Asked(branch, replies.put))
        while not self._cancel.is_set():
            with contextlib.suppress(queue.Empty):
                return replies.get(timeout=REPLY_SECONDS)
        return branch.winner

    def _report_conversation(self) -> None:
        snapshot = _copy(self._session.conversation)
        self._report(events.ConversationChanged(snapshot, self._tokens_of(snapshot)))

    def _tokens_of(self, conversation: Conversation) -> int:
        """Return how many tokens the model sees of a conversation, its last answer included."""
        from ..decoding.prompts import conversation_prompt

        if not conversation.turns:
            return 0
        turn = conversation.turns[-1]
        answered = len(turn.answer.steps) if turn.answers else 0
        try:
            return len(conversation_prompt(self._tokenizer, conversation.asked)) + answered
        except EntropixError:  # the template refuses an opened chat; asking will say so
            return answered

    def _duel(self, question: Question, sides: tuple[Settings, Settings], cancel: Token) -> None:
        error = None
        try:
            for side, settings in enumerate(sides):
                for batch in self._duel_side(question, settings, cancel):
                    self._report(events.DuelStepsArrived(cancel, side, batch))
                if cancel.is_set():
                    break
                self._report(events.DuelStepsArrived(cancel, side, [], ended=True))
        except Exception as fault:
            error = _explain(fault)
        self._report(events.AnswerEnded(cancel, error))

    def _duel_side(
        self, question: Question, settings: Settings, cancel: Token
    ) -> Iterator[list[Step]]:
        """Yield the steps of one side, from a session of its own."""
        from ..chat.session import Session

        session = Session(self._model, self._tokenizer, settings)
        session.conversation = _copy(self._session.conversation)
        with contextlib.closing(session):
            steps = session.send(question.text, question.turn, cancel=cancel)
            yield from _batches(steps)


def _batches(steps: Iterable[Step]) -> Iterator[list[Step]]:
    """Gather steps until `BATCH_SECONDS` have passed; the first one comes at once."""
    batch: list[Step] = []
    due = time.monotonic()
    for step in steps:
        batch.append(step)
        if time.monotonic() >= due:
            yield batch
            batch, due = [], time.monotonic() + BATCH_SECONDS
    if batch:
        yield batch


def _explain(error: Exception) -> str:
    """Return what the user is told of an error; unexpected ones are labelled as such."""
    if isinstance(error, EntropixError):
        return str(error)
    return f"unexpected {type(error).__name__}: {error}"


def _copy(conversation: Conversation) -> Conversation:
    """Return a copy that another thread can keep; steps never change, so they are shared."""
    turns = [
        replace(turn, answers=[replace(a, steps=list(a.steps)) for a in turn.answers])
        for turn in conversation.turns
    ]
    return replace(conversation, turns=turns)
