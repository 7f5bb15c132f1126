"""The one thread that owns MLX: it loads, caches and generates, and only posts messages.

MLX's streams are thread-local, so everything that touches an array happens here, one job after the
other. Only Python scalars and strings leave: steps, and snapshots of the conversation.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from textual.message import Message

from entropix_mlx.chat.conversation import Conversation
from entropix_mlx.errors import EntropixError
from entropix_mlx.profiles.choice import resolve
from entropix_mlx.settings import Settings
from entropix_mlx.step import Branch, Step
from entropix_mlx.traces.trace import TraceFolder

from . import messages
from .messages import Question

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from entropix_mlx.chat.session import Session
    from entropix_mlx.models.llama import Model

BATCH_SECONDS = 1 / 15
"""Steps are posted together, this often: a screen needs no more, and a message costs time."""

JOIN_SECONDS = 5.0
"""A running answer ends within a token, or a chunk of the prompt."""
JOIN_LOADING_SECONDS = 0.5
"""Nothing stops a model that is being loaded: whoever quits then does not want to wait for it."""

Load = Callable[[], "tuple[Model, TokenizerWrapper]"]
Action = Callable[["Session"], Iterator[Step] | None]


class ModelThread:
    """Runs jobs on a model, in the order in which they were given."""

    def __init__(
        self,
        load: Load,
        post: Callable[[Message], object],
        settings: Settings,
        system_prompt: str | None = None,
        ask: bool = False,
        traces: TraceFolder | None = None,
    ) -> None:
        """Set up; `start` begins to load.

        Args:
            load: returns the model and tokenizer; called on the thread.
            post: takes messages; `App.post_message`, which is thread-safe.
            settings: how to generate at first.
            system_prompt: instructions that precede the conversation.
            ask: whether the user is asked at forks.
            traces: where each answer is recorded.
        """
        self._load = load
        self._post = post
        self._settings = settings
        self._system_prompt = system_prompt
        self._ask = ask
        self._traces = traces
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._cancelled = threading.Event()
        self._replies: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._stopping = False
        self._loaded = threading.Event()
        self._answering: Session | None = None
        self._session: Session
        self._model: Model
        self._tokenizer: TokenizerWrapper
        self._thread = threading.Thread(target=self._run, name="model", daemon=True)

    def start(self) -> None:
        """Begin to load the model."""
        self._thread.start()

    def stop(self) -> None:
        """End the running job and the thread."""
        self._stopping = True
        self._jobs.put(None)
        self.cancel()

    def join(self) -> None:
        """Wait for the end of the thread after `stop`, but not long.

        A thread that is inside MLX when the interpreter ends aborts the process.
        """
        if self._thread.is_alive():
            self._thread.join(JOIN_SECONDS if self._loaded.is_set() else JOIN_LOADING_SECONDS)

    def cancel(self) -> None:
        """Stop the running answer before its next token, in a fork too."""
        self._cancelled.set()
        if self._answering is not None:
            self._answering.cancel()

    def submit(self, action: Action) -> None:
        """Do something with the session; steps that it returns are read and posted."""
        self._jobs.put(lambda: self._answer(action))

    def ask(self, question: Question) -> None:
        """Ask a question; if it is refused, it comes back with the end of the answer."""

        def send(session: Session) -> Iterator[Step]:
            if question.turn is None:
                return session.send(question.text)
            roles = [message["role"] for message in session.messages]
            asked = [index for index, role in enumerate(roles) if role == "user"]
            return session.edit(asked[question.turn], question.text)

        self._jobs.put(lambda: self._answer(send, question))

    def configure(self, settings: Settings, ask: bool) -> None:
        """Use other settings from the next answer on."""

        def job() -> None:
            self._settings = self._session.settings = settings
            self._session.choose = self._choose if ask else None

        self._jobs.put(job)

    def duel(self, number: int, question: Question, sides: tuple[Settings, Settings]) -> None:
        """Answer a question by one setting after the other; the conversation stays as it is.

        Args:
            number: comes back with the steps, so that they are not taken for another duel's.
            question: see above; it follows the turns before its own.
            sides: see above.
        """
        self._jobs.put(lambda: self._duel(number, question, sides))

    def _run(self) -> None:
        try:
            self._open_session()
        except Exception as error:  # a thread that dies in silence would leave the app waiting
            self._post(messages.LoadFailed(_explain(error)))
            return
        while (job := self._jobs.get()) is not None and not self._stopping:
            job()
        self._session.close()

    def _open_session(self) -> None:
        from entropix_mlx.chat.session import Session

        self._model, self._tokenizer = self._load()
        self._session = Session(
            self._model,
            self._tokenizer,
            self._settings,
            system_prompt=self._system_prompt,
            on_prefill=lambda done, total: self._told(messages.Prefilled(done, total)),
            on_drop=lambda count: self._told(messages.TurnsDropped(count)),
            choose=self._choose if self._ask else None,
            traces=self._traces,
        )
        config = self._model.config
        self._loaded.set()
        profile = resolve(self._settings.profile, config, self._settings.changes)
        self._post(messages.Loaded(config.max_position_embeddings, profile))

    def _told(self, message: Message) -> None:
        """Post a message about the running answer; and pass a cancel on, also in a prefill."""
        self._post(message)
        if self._cancelled.is_set():
            self._session.cancel()

    def _begin(self, session: Session) -> None:
        """Forget what cancelled the answer before; the end of the app cancels every answer."""
        self._answering = session
        self._cancelled.clear()
        if self._stopping:
            self._cancelled.set()

    def _answer(self, action: Action, question: Question | None = None) -> None:
        self._begin(self._session)
        error, refused = None, question
        try:
            with contextlib.closing(self._session):  # which also ends a trace, and so may fail
                steps = action(self._session)
                refused = None
                self._tell_conversation()
                if steps is not None:
                    for batch in self._batches(steps):
                        self._post(messages.StepsArrived(batch))
        except Exception as fault:
            error = _explain(fault)
        self._tell_conversation()
        self._post(messages.AnswerEnded(error, refused))

    def _batches(self, steps: Iterator[Step]) -> Iterator[list[Step]]:
        batch: list[Step] = []
        due = time.monotonic()
        for step in steps:
            batch.append(step)
            if time.monotonic() >= due:
                yield batch
                batch, due = [], time.monotonic() + BATCH_SECONDS
            if self._cancelled.is_set():
                break
        if batch:
            yield batch

    def _choose(self, branch: Branch) -> int:
        """Ask, and wait; a cancel is the best one."""
        if self._cancelled.is_set():
            return branch.winner
        self._replies = queue.SimpleQueue()
        self._post(messages.Asked(branch, self._replies.put))
        while not self._cancelled.is_set():
            try:
                return self._replies.get(timeout=0.1)
            except queue.Empty:
                continue
        return branch.winner

    def _tell_conversation(self) -> None:
        snapshot = _copy(self._session.conversation)
        self._post(messages.ConversationChanged(snapshot, self._session.cached_tokens))

    def _duel(self, number: int, question: Question, sides: tuple[Settings, Settings]) -> None:
        self._begin(self._session)
        error = None
        try:
            for side, settings in enumerate(sides):
                for batch in self._duel_side(question, settings):
                    self._post(messages.DuelStepsArrived(number, side, batch))
                if self._cancelled.is_set():
                    break
                self._post(messages.DuelStepsArrived(number, side, [], ended=True))
        except Exception as fault:
            error = _explain(fault)
        self._post(messages.AnswerEnded(error))

    def _duel_side(self, question: Question, settings: Settings) -> Iterator[list[Step]]:
        """Yield the steps of one side, from a session of its own."""
        from entropix_mlx.chat.session import Session

        def pass_cancel_on(_done: int, _total: int) -> None:
            if self._cancelled.is_set():
                session.cancel()

        session = Session(self._model, self._tokenizer, settings, on_prefill=pass_cancel_on)
        session.conversation = _copy(self._session.conversation)
        if question.turn is not None:
            del session.conversation.turns[question.turn :]
        self._answering = session
        with contextlib.closing(session):
            yield from self._batches(session.send(question.text))


def _explain(error: Exception) -> str:
    """Return what is told of an error; what nobody foresaw is called so."""
    if isinstance(error, EntropixError):
        return str(error)
    return f"unexpected {type(error).__name__}: {error}"


def _copy(conversation: Conversation) -> Conversation:
    """Return a copy that the other thread can keep; steps never change, so they are shared."""
    turns = [
        replace(turn, answers=[replace(a, steps=list(a.steps)) for a in turn.answers])
        for turn in conversation.turns
    ]
    return replace(conversation, turns=turns)
