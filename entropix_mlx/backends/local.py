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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..chat.conversation import Conversation
from ..errors import EntropixError
from ..profiles.profile import Profile
from ..profiles.selection import resolve
from ..settings import Settings
from ..step import Fork, Step
from ..traces.trace import Header, TraceFolder
from . import events
from .address import Address
from .events import Event, Question, Token
from .reporting import batches, explain, snapshot

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ..answer.hooks import OnFork
    from ..api.batch import Batch
    from ..chat.session import Session
    from ..engine.speculation.draft_model import DraftModel
    from ..models.base import LanguageModel
    from ..notes.notes import Notes

JOIN_SECONDS = 5.0
"""How long `join` waits for a cancelled answer, which ends within one token or prompt chunk."""
JOIN_LOADING_SECONDS = 0.5
"""How long `join` waits for a model that is still loading, which nothing can interrupt."""
REPLY_SECONDS = 0.1
"""How often the cancel token is looked at while the user chooses a way at a fork."""

Load = Callable[[], "tuple[LanguageModel, TokenizerWrapper]"]
Action = Callable[["Session", Token], Iterator[Step] | None]
"""What to do with the session; a cancel token to pass on is the second argument."""


@dataclass(frozen=True)
class Chat:
    """What a chat begins with."""

    model: str  # its name as the user knows it
    load: Load
    """Returns the model and its tokenizer; called on the model's thread."""
    settings: Settings
    """How to generate at first."""
    system_prompt: str | None = None  # instructions that precede the conversation
    ask: bool = False  # whether the user is asked at forks
    traces: TraceFolder | None = None  # where each answer is recorded
    server: Address | None = None
    """Where the model is, if it is not in this process; see `client.py`."""
    load_named: Callable[[str], tuple[LanguageModel, TokenizerWrapper]] | None = None
    """Loads another model, by its name or path; None if there is no choice."""
    make_thread: Callable[[Chat, Callable[[Event], None]], ModelThread] | None = None
    """Makes what answers in place of a `ModelThread`."""
    notes: Notes | None = None  # where things are looked up
    load_draft: Callable[[LanguageModel, TokenizerWrapper], DraftModel | None] | None = None
    """Loads a model that guesses for the first one; another one may have another tokenizer."""


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
        self._model: LanguageModel
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
        """Answer a question with two settings at once; the conversation does not change.

        Args:
            question: what both sides answer, in the place of its turn or after the last one.
            sides: the settings of each.
            cancel: also comes back with each of the duel's events.
        """
        self._jobs.put(lambda: self._duel(question, sides, cancel))

    def switch(self, model: str, cancel: Token) -> None:
        """Load another model in place of this one; the conversation stays.

        If it cannot be loaded, this one is loaded again.
        """
        self._jobs.put(lambda: self._switch(model, cancel))

    def list_models(self) -> None:
        """Report the models on this machine."""
        self._jobs.put(self._list_models)

    def _run(self) -> None:
        try:
            self._open_session()
        except Exception as error:  # without an event the front end would wait for ever
            self._drop_jobs()
            self._report(events.LoadFailed(explain(error)))
        while (job := self._jobs.get()) is not None and not self._stopping:
            job()
        if self._loaded.is_set():
            self._session.close()

    def _drop_jobs(self) -> None:
        """Forget the jobs that waited for a model, but not that the thread is to end."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._jobs.get_nowait()
        if self._stopping:
            self._jobs.put(None)

    def _switch(self, model: str, cancel: Token) -> None:
        before, load_named = self._chat, self._chat.load_named
        conversation, settings, choose = None, before.settings, None
        if self._loaded.is_set():
            conversation, settings = self._session.conversation, self._session.settings
            choose = self._session.choose
            self._session.close()
            del self._session, self._model, self._tokenizer  # room for the other one
            self._loaded.clear()
        error, chosen = None, replace(before, model=model, load_draft=None)
        chosen = replace(chosen, load=lambda: load_named(model))  # type: ignore[misc]
        for chat in (chosen, before) if conversation else (chosen,):
            try:
                self._chat = replace(chat, settings=settings)
                self._open_session()
                break
            except Exception as fault:
                error = f"{model} cannot be loaded: {explain(fault)}"
        if self._loaded.is_set() and conversation is not None:
            self._session.resume(conversation)
            self._session.choose = choose
        elif not self._loaded.is_set():
            self._drop_jobs()
            self._report(events.LoadFailed(error or ""))
            return
        self._report(events.AnswerEnded(cancel, error))

    def _list_models(self) -> None:
        from ..checkpoints.inventory import inventory

        try:
            self._report(events.ModelsListed(list(inventory())))
        except Exception as error:
            self._report(events.ModelsListed([], explain(error)))

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
        self._session.on_fork = lambda *grown: self._report(events.ForkGrew(*grown))
        self._session.notes = self._chat.notes
        if self._chat.load_draft is not None:
            self._session.draft_model = self._chat.load_draft(self._model, self._tokenizer)
        config, settings = self._model.config, self._chat.settings
        self._loaded.set()
        profile = resolve(settings.profile, config, settings.changes)
        self._report(events.Loaded(self._chat.model, config.max_position_embeddings, profile))

    def _answer(self, action: Action, cancel: Token, question: Question | None = None) -> None:
        self._cancel = cancel
        error, refused = None, question
        try:
            # Closing the session also ends a trace, which may fail as anything else here.
            with contextlib.closing(self._session):
                steps = action(self._session, cancel)
                refused = None
                self._report_conversation()
                for batch in batches(steps or ()):
                    self._report(events.StepsArrived(batch))
        except Exception as fault:
            error = explain(fault)
        self._report_conversation()
        self._report(events.AnswerEnded(cancel, error, refused))

    def _choose(self, fork: Fork) -> int:
        """Ask the user, and wait; a cancel takes the best way."""
        replies: queue.SimpleQueue[int] = queue.SimpleQueue()
        if not self._cancel.is_set():
            self._report(events.Asked(fork, replies.put))
        while not self._cancel.is_set():
            with contextlib.suppress(queue.Empty):
                return replies.get(timeout=REPLY_SECONDS)
        return fork.winner

    def _report_conversation(self) -> None:
        taken = snapshot(self._session.conversation)
        self._report(events.ConversationChanged(taken, self._tokens_of(taken)))

    def _tokens_of(self, conversation: Conversation) -> int:
        """Return how many tokens the model sees of a conversation, its last answer included."""
        from ..api.prompts import conversation_prompt

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
            config = self._model.config
            resolved = [settings.resolved(config).settings for settings in sides]
            with contextlib.closing(self._both(question, resolved, cancel)) as batch:
                running = list(range(len(sides)))
                for found in batches(batch):
                    running = [n for n in running if not self._report_side(batch, n, found, cancel)]
                for side in running if not cancel.is_set() else ():
                    self._report_side(batch, side, [], cancel, ended=True)
        except Exception as fault:
            error = explain(fault)
        self._report(events.AnswerEnded(cancel, error))

    def _both(self, question: Question, sides: list[Settings], cancel: Token) -> Batch:
        """Report how a duel begins; return its two answers, which share their passes."""
        from ..answer.hooks import Hooks
        from ..api.batch import batch_generate
        from ..chat.context import Context

        context = Context(self._tokenizer, self._model.config.max_position_embeddings)
        asked = self._session.conversation.asking(question.text, question.turn)
        prompts = [context.fit(asked, settings.max_tokens) for settings in sides]
        hooks = [Hooks(cancel, on_fork=self._report_rollouts(cancel, n)) for n in (0, 1)]
        batch = batch_generate(
            self._model, self._tokenizer, prompts, sides, hooks=hooks, steady=True
        )
        headers = [
            None if answer.error else self._header(settings, asked.asked, answer.prompt_tokens)
            for settings, answer in zip(sides, batch.answers, strict=True)
        ]
        self._report(events.DuelBegan(cancel, tuple(headers)))
        return batch

    def _report_rollouts(self, cancel: Token, side: int) -> OnFork:
        """Return what reports the ways of a fork at one side of a duel."""
        return lambda _, fork: self._report(events.DuelForkGrew(cancel, side, fork))

    def _header(
        self, settings: Settings, messages: list[dict[str, str]], prompt_tokens: int
    ) -> Header:
        """Return how a trace of an answer with resolved settings begins."""
        return Header(
            model=self._chat.model,
            sampler=settings.sampler,
            profile=Profile.load(settings.profile),
            seed=settings.seed or 0,
            messages=messages,
            context_length=self._model.config.max_position_embeddings,
            prompt_tokens=prompt_tokens,
        )

    def _report_side(
        self,
        batch: Batch,
        side: int,
        found: list[tuple[int, Step]],
        cancel: Token,
        ended: bool = False,
    ) -> bool:
        """Report the steps of one side of a duel; return whether that side has ended."""
        steps = [step for index, step in found if index == side]
        fault = batch.answers[side].error
        error = None if fault is None else explain(fault)
        ended = ended or fault is not None or bool(steps and steps[-1].finish_reason)
        if steps or ended:
            self._report(events.DuelStepsArrived(cancel, side, steps, ended, error))
        return ended
