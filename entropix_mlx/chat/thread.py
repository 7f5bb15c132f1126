"""A front end's way to a model: a `Backend`, and the thread that runs its jobs.

MLX's streams are thread-local, so all work on arrays happens on this thread, one job after
the other. Only Python scalars, strings and records of them leave it, as events.

Each job has a cancel token, a ``threading.Event``, which ends that job and no other, before it
begins or at its next token.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol

from ..errors import SessionError
from ..settings import Settings
from ..step import AttentionMap, DrawDistribution, Fork, Step
from ..traces.trace import TraceFolder
from . import events
from .conversation import Conversation
from .events import CancelToken, Report, UserMessage, batches, explain, snapshot
from .session import ChatSession

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ..checkpoints.local import LocalModel
    from ..models.base import LanguageModel
    from ..notes import Notes
    from .local import Session

    Loaded = tuple[LanguageModel, TokenizerWrapper]

JOIN_SECONDS = 5.0
"""How long `join` waits for a cancelled answer, which ends within one token or prompt chunk."""
JOIN_LOADING_SECONDS = 0.5
"""How long `join` waits for a model that is still loading, which nothing can interrupt."""
REPLY_SECONDS = 0.1
"""The interval at which the cancel token is checked while the user chooses a branch."""

StepReading = DrawDistribution | AttentionMap
Action = Callable[[ChatSession, CancelToken], Iterator[Step] | None]
"""Something to do with the session; a cancel token to pass on is the second argument."""


class Backend(Protocol):
    """Where answers come from: a model of this process, a server's, or a recording.

    The methods are called on one thread.
    """

    model: str
    """Its name, for people."""
    settings: Settings
    """How to generate at first."""
    system_prompt: str | None
    ask: bool
    """Whether the user is asked at forks."""
    refusals: Mapping[str, str]
    """Why it cannot do ``"ask"``; one that can has no entry."""

    def open(self, model: str | None = None) -> ChatSession:
        """Return a session with another model, or with the same as before.

        Close the session before it first. After an error, another model may be opened.
        """

    def models(self) -> Sequence[LocalModel]:
        """Return the models to choose from; without a choice, raise an `EntropixError`."""


@dataclass
class LocalBackend:
    """A model of this process; see `Backend`."""

    model: str
    load: Callable[[], Loaded]
    """Returns the model and its tokenizer; called on the backend's thread."""
    settings: Settings
    system_prompt: str | None = None
    ask: bool = False
    traces: TraceFolder | None = None
    """Where each answer is recorded."""
    load_named: Callable[[str], Loaded] | None = None
    """Loads another model, by its name or path; None if there is no choice."""
    notes: Notes | None = None
    """Where passages are retrieved from."""
    refusals: Mapping[str, str] = field(default_factory=dict, init=False)

    def open(self, model: str | None = None) -> Session:
        from .local import Session

        name, load = self.model, self.load
        if model is not None:
            if self.load_named is None:
                raise SessionError("there is no other model to choose")
            name, load = model, partial(self.load_named, model)
        loaded = load()
        session = Session(
            *loaded, self.settings, system_prompt=self.system_prompt, traces=self.traces
        )
        session.notes = self.notes
        self.model, self.load = name, load
        return session

    def models(self) -> Sequence[LocalModel]:
        from ..checkpoints.local import inventory

        return list(inventory())


class BackendThread:
    """Runs jobs on a backend, in the order in which they were given."""

    def __init__(self, backend: Backend, report: Report) -> None:
        self._backend = backend
        self._report = report
        self._settings, self._ask = backend.settings, backend.ask
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._stopping = False
        self._cancel = CancelToken()  # that of the running job
        self._session: ChatSession | None = None
        self._thread = threading.Thread(target=self._run, name="model", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the running job, and drop the jobs that wait."""
        self._stopping = True
        self._jobs.put(None)

    def join(self) -> None:
        """Wait a little for the end of the thread after `stop`; see `alive`."""
        if self._thread.is_alive():
            self._thread.join(JOIN_SECONDS if self._session else JOIN_LOADING_SECONDS)

    @property
    def alive(self) -> bool:
        """Whether the thread runs.

        If it does after `join`, leave the process by ``os._exit``: it may be inside MLX, and would
        abort the interpreter.
        """
        return self._thread.is_alive()

    def submit(self, action: Action, cancel: CancelToken) -> None:
        """Do something with the session; the steps that it returns are read and reported."""
        self._jobs.put(lambda: self._answer(action, cancel))

    def ask(self, question: UserMessage, cancel: CancelToken) -> None:
        """Ask a question; if it is refused, it comes back with the end of the answer."""

        def send(session: ChatSession, cancel: CancelToken) -> Iterator[Step]:
            return session.send(question.text, question.turn, cancel=cancel)

        self._jobs.put(lambda: self._answer(send, cancel, question))

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
            self._settings, self._ask = settings, ask
            self._apply_settings()

        self._jobs.put(job)

    def switch(self, model: str, cancel: CancelToken) -> None:
        """Load another model for the same conversation; if that fails, load this one again."""
        self._jobs.put(lambda: self._switch(model, cancel))

    def list_models(self) -> None:
        self._jobs.put(self._list_models)

    def _run(self) -> None:
        if error := self._open():  # without an event the front end would wait for ever
            self._drop_jobs()
            self._report(events.LoadFailed(error))
        while (job := self._jobs.get()) is not None and not self._stopping:
            job()
        self._leave()

    def _open(self, model: str | None = None) -> str | None:
        """Open a session; return why that failed."""
        try:
            session = self._backend.open(model)
            session.on_prefill = lambda done, total: self._report(events.Prefilled(done, total))
            session.on_drop = lambda count: self._report(events.TurnsDropped(count))
            session.on_answers = lambda standing: self._report(events.AnswersDrawn(standing))
            session.on_fork = lambda index, fork: self._report(events.ForkGrew(index, fork))
            self._session = session
            self._apply_settings()
            loaded = events.Loaded(self._backend.model, session.context_length, session.profile)
        except Exception as error:
            self._session = None
            return explain(error)
        self._report(loaded)
        return None

    def _leave(self) -> Conversation | None:
        session, self._session = self._session, None
        if session is None:
            return None
        session.close()
        return session.conversation

    def _apply_settings(self) -> None:
        if self._session is not None:
            self._session.settings = self._settings
            self._session.choose = self._choose if self._ask else None

    def _drop_jobs(self) -> None:
        """Forget the jobs that waited for a model, but not that the thread is to end."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._jobs.get_nowait()
        if self._stopping:
            self._jobs.put(None)

    def _switch(self, model: str, cancel: CancelToken) -> None:
        conversation = self._leave()
        error = self._open(model)
        if error is not None:
            error = f"{model} cannot be loaded: {error}"
            if conversation is not None:
                self._open()
        if self._session is None:
            self._drop_jobs()
            self._report(events.LoadFailed(error or ""))
            return
        if conversation is not None:
            self._session.resume(conversation)
        self._report(events.AnswerEnded(cancel, error))

    def _list_models(self) -> None:
        try:
            self._report(events.ModelsListed(self._backend.models()))
        except Exception as error:
            self._report(events.ModelsListed([], explain(error)))

    def _answer(
        self, action: Action, cancel: CancelToken, question: UserMessage | None = None
    ) -> None:
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
        self._report_conversation()
        self._report(events.AnswerEnded(cancel, error, refused))

    def _opened(self) -> ChatSession:
        if self._session is None:
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
        if (session := self._session) is not None:
            copy = snapshot(session.conversation)
            self._report(events.ConversationChanged(copy, session.context_used))
