"""The thread of a front end's chat: it runs jobs on a session, one after the other.

MLX's streams are thread-local, so all work on arrays happens on this thread. Only Python scalars,
strings and records of them leave it, as events.

Each job has a cancel token, a ``threading.Event``, which ends that job and no other, before it
begins or at its next token.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from ..answer.hooks import Hooks
from ..errors import EntropixError, SessionError
from ..settings import Settings
from ..step import AttentionMap, DrawDistribution, Fork, Step
from . import events
from .events import CancelToken, Report, UserMessage
from .session import ChatSession

JOIN_SECONDS = 5.0  # that `join` waits for an answer, which ends within a token or prompt chunk
JOIN_LOADING_SECONDS = 0.5  # that `join` waits for a model that loads: nothing can interrupt it
REPLY_SECONDS = 0.1  # between two looks at the cancel token while the user chooses a branch
BATCH_SECONDS = 1 / 15  # between two reports of steps: each event costs time

StepReading = DrawDistribution | AttentionMap
Action = Callable[[ChatSession, CancelToken], Iterator[Step] | None]
"""Something to do with the session; a cancel token to pass on is the second argument."""


class ChatThread:
    """Runs jobs on a session, in the order in which they were given.

    Once it is started, the session belongs to the thread: use it in jobs only.
    """

    def __init__(self, session: ChatSession, report: Report, ask: bool = False) -> None:
        """Prepare a thread.

        Args:
            session: its source is opened on the thread.
            report: takes events, on the thread.
            ask: whether the user chooses the branch at forks that are close.
        """
        self._session = session
        self._report = report
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._stopping = False
        self._loaded = False
        self._cancel = CancelToken()  # that of the running job
        self._thread = threading.Thread(target=self._run, name="model", daemon=True)
        session.hooks = Hooks(
            on_prefill=lambda done, total: report(events.Prefilled(done, total)),
            on_fork=lambda index, fork: report(events.ForkGrew(index, fork)),
            choose=self._choose if ask else None,
        )
        session.on_drop = lambda count: report(events.TurnsDropped(count))
        session.on_answers = lambda standing: report(events.AnswersDrawn(standing))

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the running job, and drop the jobs that wait."""
        self._stopping = True
        self._jobs.put(None)

    def join(self) -> None:
        """Wait a little for the end of the thread after `stop`; see `alive`."""
        if self._thread.is_alive():
            self._thread.join(JOIN_SECONDS if self._loaded else JOIN_LOADING_SECONDS)

    @property
    def alive(self) -> bool:
        """Whether the thread runs.

        If it does after `join`, leave the process by ``os._exit``: it may be inside MLX, and would
        abort the interpreter.
        """
        return self._thread.is_alive()

    def submit(
        self, action: Action, cancel: CancelToken, question: UserMessage | None = None
    ) -> None:
        """Do something with the session; the steps that it returns are read and reported.

        A `question` that is refused comes back in the `AnswerEnded` event.
        """
        self._jobs.put(lambda: self._answer(action, cancel, question))

    def read_step(self, step: Step, read: Callable[[ChatSession], StepReading]) -> None:
        """Report what the session reads of a step of an answer, or why it cannot."""

        def job() -> None:
            try:
                found = read(self._opened())
            except Exception as fault:
                self._report(events.StepRead(step, None, explain(fault)))
            else:
                self._report(events.StepRead(step, found))

        self._jobs.put(job)

    def configure(self, settings: Settings, ask: bool) -> None:
        def job() -> None:
            session, choose = self._session, self._choose if ask else None
            session.settings, session.hooks = settings, replace(session.hooks, choose=choose)

        self._jobs.put(job)

    def switch(self, model: str, cancel: CancelToken) -> None:
        """Load another model for the same conversation; if that fails, load this one again."""
        self._jobs.put(lambda: self._switch(model, cancel))

    def accept_thresholds(self) -> None:
        """Use the thresholds that were learned, and report the profile."""

        def job() -> None:
            with contextlib.suppress(EntropixError):  # a folder that cannot be written
                self._opened().accept_thresholds()
            self._report_loaded()

        self._jobs.put(job)

    def list_models(self) -> None:
        def job() -> None:
            try:
                self._report(events.ModelsListed(self._session.source.models()))
            except Exception as error:
                self._report(events.ModelsListed([], explain(error)))

        self._jobs.put(job)

    def _run(self) -> None:
        if error := self._open():  # without an event the front end would wait for ever
            self._fail(error)
        while (job := self._jobs.get()) is not None and not self._stopping:
            job()
        self._session.close()

    def _open(self, model: str | None = None) -> str | None:
        """Open the source; return why that failed."""
        session = self._session
        self._loaded = False
        try:
            session.source.open(model)
            session.profile  # noqa: B018 - raises what is wrong with it
        except Exception as error:
            return explain(error)
        self._loaded = True
        self._report_loaded()
        return None

    def _report_loaded(self) -> None:
        source = self._session.source
        self._report(events.Loaded(source.model, source.context_length, self._session.profile))
        self._offer_thresholds()

    def _offer_thresholds(self) -> None:
        if self._session.offers_thresholds:
            self._report(events.ThresholdsReady())

    def _fail(self, error: str) -> None:
        """Report that there is no model, and drop the jobs that waited for it."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._jobs.get_nowait()
        if self._stopping:
            self._jobs.put(None)
        self._report(events.LoadFailed(error))

    def _switch(self, model: str, cancel: CancelToken) -> None:
        had_model = self._loaded
        self._session.close()
        error = self._open(model)
        if error is not None:
            error = f"{model} cannot be loaded: {error}"
            if not had_model or self._open() is not None:
                self._fail(error)
                return
        self._report(events.AnswerEnded(cancel, error))

    def _answer(self, action: Action, cancel: CancelToken, question: UserMessage | None) -> None:
        self._cancel = cancel
        error, refused = None, question
        try:
            # Closing the session also ends a trace, which may fail as anything else here.
            with contextlib.closing(self._opened()) as session:
                steps = action(session, cancel)
                refused = None
                self._report_conversation()
                for batch in batches(steps or ()):
                    self._report(events.StepsArrived(batch))
        except Exception as fault:
            error = explain(fault)
        if self._loaded:
            self._report_conversation()
        self._report(events.AnswerEnded(cancel, error, refused))
        if self._loaded:
            self._offer_thresholds()

    def _opened(self) -> ChatSession:
        if not self._loaded:
            raise SessionError("no model is loaded: choose one")
        return self._session

    def _choose(self, fork: Fork) -> int:
        """Ask the user, and wait; a cancel takes the best branch."""
        replies: queue.SimpleQueue[int] = queue.SimpleQueue()
        if not self._cancel.is_set():
            self._report(events.ChoiceNeeded(fork, replies.put))
        while not self._cancel.is_set():
            with contextlib.suppress(queue.Empty):
                return replies.get(timeout=REPLY_SECONDS)
        return fork.winner

    def _report_conversation(self) -> None:
        conversation = self._session.conversation
        self._report(events.ConversationChanged(conversation.snapshot()))


def batches(steps: Iterable[Step]) -> Iterator[list[Step]]:
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


def explain(error: Exception) -> str:
    """Return the message of an error; unexpected ones are labelled as such."""
    if isinstance(error, EntropixError):
        return str(error)
    return f"unexpected {type(error).__name__}: {error}"
