"""A conversation, and the source that its answers come from.

A `AnswerSource` is a model in this process (`chat.local`), a server (`chat.remote`) or a recording
(`chat.recorded`).
"""

from __future__ import annotations

import contextlib
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from ..answer.hooks import Hooks
from ..answer.selection import AnswersStanding
from ..errors import PromptError, SessionError, check_type, whole_number
from ..profiles.profile import AUTO, Profile
from ..settings import SEED_BITS, Settings
from ..step import AttentionMap, DrawDistribution, Step
from .conversation import Conversation, Reply

if TYPE_CHECKING:
    from ..api.learned import TokenCounts
    from ..checkpoints.local import LocalModel

OnAnswers = Callable[[AnswersStanding], None]
NOT_LOCAL = "only a local model shows what it drew from and looked at: leave --server out"


@dataclass(frozen=True)
class Asked:
    """An answer that a source is to write."""

    conversation: Conversation
    """Ends with the question. The source sets `dropped` where the context is full."""
    reply: Reply
    """The answer, with the steps that it takes over. The source sets its `prompt_tokens`."""
    settings: Settings
    hooks: Hooks
    forced: Sequence[int] = ()  # token ids that come next; empty where the answer begins anew
    on_answers: OnAnswers | None = None


class AnswerSource(ABC):
    """Where the answers of a conversation come from. Use it on one thread."""

    model: str  # the name of the model, for people
    context_length: int  # the most tokens that the model can hold; known once it is open
    fingerprint: str | None = None  # identifies the model; None if it is unknown
    refusals: Mapping[str, str] = {}
    """Why it cannot ``"ask"`` at forks, or ``"open"`` a file; what it can do has no entry."""

    @property
    @abstractmethod
    def auto_profile(self) -> Profile:
        """The profile that ``"auto"`` means for the model."""

    @property
    def counts(self) -> TokenCounts | None:
        """The counts from which thresholds for the model are learned; None where none are."""
        return None

    @abstractmethod
    def open(self, model: str | None = None) -> None:
        """Load another model, or the same as before. After an error, none is loaded. Raises
        `EntropixError` if it cannot be loaded, or there is no choice of models."""

    @abstractmethod
    def models(self) -> Sequence[LocalModel]:
        """Return the models to choose from. Raises `EntropixError` if there is no choice."""

    @abstractmethod
    def answer(self, asked: Asked) -> Generator[Step, None, None]:
        """Return the steps of an answer. Raises `EntropixError` if the question or the settings do
        not fit; raised by the call itself."""

    def distribution(
        self, conversation: Conversation, steps: Sequence[Step], settings: Settings
    ) -> DrawDistribution:
        """Return what the last of an answer's steps was drawn from; see `ChatSession`."""
        raise SessionError(NOT_LOCAL)

    def attention(self, conversation: Conversation, steps: Sequence[Step]) -> AttentionMap:
        """Return what the last of an answer's steps looked at; see `ChatSession`."""
        raise SessionError(NOT_LOCAL)


class ChatSession:
    """Messages in, steps out. Use it on one thread.

    `send`, `regenerate` and `fork` return an iterator of steps. The question is part of the
    conversation at once, and the answer grows while the iterator is read. You may stop reading at
    any moment: the answer keeps the steps that were read. Once their `cancel` event is set, from
    any thread and even before the call, the answer ends before its next token.

    Attributes:
        source: writes the answers.
        settings: how to generate.
        conversation: the turns so far.
        hooks: functions that watch and steer answers, as for `stream_generate`.
        on_answers: called with an `AnswersStanding` when one of several answers has ended.
        on_drop: called when the context is full, with the number of turns left out so far.

    Changed attributes apply from the next answer on.
    """

    def __init__(
        self,
        source: AnswerSource,
        settings: Settings | None = None,
        system_prompt: str | None = None,
        hooks: Hooks | None = None,
    ) -> None:
        check_type("settings", settings, Settings, optional=True)
        check_type("system_prompt", system_prompt, str, optional=True)
        self.source = source
        self.settings = settings or Settings()
        self.conversation = Conversation(system_prompt)
        self.hooks = hooks or Hooks()
        self.on_answers: OnAnswers | None = None
        self.on_drop: Callable[[int], None] | None = None
        self._running: _Running | None = None
        self._answered_with = self.settings

    @property
    def profile(self) -> Profile:
        """The profile that the settings mean for this model. Raises `ProfileError` if there is no
        such profile, or a changed field does not fit."""
        return profile_of(self.settings, self.source)

    @property
    def offers_thresholds(self) -> bool:
        """Whether thresholds for the model have been learned, and the settings would use them."""
        counts = self.source.counts
        return counts is not None and counts.ready and self.settings.profile == AUTO

    def accept_thresholds(self) -> None:
        """Use the learned thresholds from the next answer on, in this chat and all others.

        Raises:
            ProfileError: they cannot be written, or are not there yet.
        """
        if self.source.counts is not None:
            self.source.counts.accept(self.source.model)

    def send(
        self, text: str, turn: int | None = None, *, cancel: Event | None = None
    ) -> Iterator[Step]:
        """Ask a question and return the steps of the answer.

        Args:
            text: the question.
            turn: index in `conversation.turns` of a turn to replace, together with all that follow
                it; None asks after the last one.
            cancel: see the class.

        Raises:
            PromptError: the text is empty, or the chat template refuses the messages.
            ContextLengthError: the text alone does not fit into the context.
            SessionError: there is no such turn.
            SamplerError, ProfileError: the settings do not fit.
        """
        check_type("text", text, str)
        check_type("cancel", cancel, Event, optional=True)
        turn = _index(turn)
        self.close()
        if not text.strip():
            raise PromptError("the message is empty: write a question")
        conversation = self.conversation.asking(text, turn)
        return self._start(conversation, self._new_reply(conversation), [], cancel)

    def regenerate(self, *, cancel: Event | None = None) -> Iterator[Step]:
        """Answer the last question once more; the old answer stays beside the new one.

        The seed is the next one, or the same if the settings have changed, so that the change is
        the only difference. Raises `SessionError` if nothing was asked yet. Raises `SamplerError`
        or `ProfileError` if the settings do not fit.
        """
        check_type("cancel", cancel, Event, optional=True)
        self.close()
        conversation = replace(self.conversation)
        return self._start(conversation, self._new_reply(conversation), [], cancel)

    def fork(
        self,
        step_index: int,
        token: int | Sequence[int],
        turn: int | None = None,
        *,
        cancel: Event | None = None,
    ) -> Iterator[Step]:
        """Replace a token of an answer, and return the steps from there on.

        The old answer stays beside the new one, with the turns that followed it.

        Args:
            step_index: index of the step to replace.
            token: the id of the new token, or several ids, such as a branch's.
            turn: index in `conversation.turns` of the answer's turn; None is the last one.
            cancel: see the class.

        Raises:
            SessionError: there is no such turn, step or token, or another model wrote that answer.
            ContextLengthError: the answer up to that step does not fit into the context.
            SamplerError, ProfileError: the settings do not fit.
        """
        check_type("cancel", cancel, Event, optional=True)
        turn = _index(turn)
        step_index = whole_number("step_index", step_index)
        given = token if isinstance(token, Sequence) else [token]
        tokens = [whole_number("token", each) for each in given]
        if not tokens:
            raise SessionError("there is no token to put there: give at least one")
        self.close()
        conversation, old = self._written(step_index, turn)
        reply = Reply(old.seed, old.steps[:step_index], self.source.fingerprint)
        return self._start(conversation, reply, tokens, cancel)

    def distribution(self, step_index: int, turn: int | None = None) -> DrawDistribution:
        """Return the probabilities that a step of an answer was drawn from.

        The model reads the answer again up to that step, with the session's settings. Raises
        `SessionError` if there is no such turn or step, or another model wrote the answer, or the
        source has no model in this process.
        """
        conversation, answer = self._written(step_index, turn)
        steps = answer.steps[: step_index + 1]
        return self.source.distribution(conversation, steps, self.settings)

    def attention(self, step_index: int, turn: int | None = None) -> AttentionMap:
        """Return what a step of an answer looked at, as `api.attention.attention_map` does. Raises
        `SessionError` as for `distribution`. Raises `UnsupportedModelError` if the model's
        attention cannot be read."""
        conversation, answer = self._written(step_index, turn)
        return self.source.attention(conversation, answer.steps[: step_index + 1])

    def select(self, answer: int, turn: int | None = None) -> None:
        """Make another of a question's answers part of the conversation; see `Conversation`."""
        answer = whole_number("answer", answer)
        turn = _index(turn)
        self.close()
        self.conversation.select(answer, turn)

    def instruct(self, system_prompt: str | None) -> None:
        """Set the instructions that precede the conversation, from the next answer on."""
        check_type("system_prompt", system_prompt, str, optional=True)
        self.close()
        self.conversation.system_prompt = system_prompt

    def new(self) -> None:
        self.resume(Conversation(self.conversation.system_prompt))

    def save(self, path: str | Path) -> None:
        self.close()
        self.conversation.save(path)

    def load(self, path: str | Path) -> None:
        """Continue a saved conversation instead of this one; see `Conversation.load`."""
        if reason := self.source.refusals.get("open"):
            raise SessionError(reason)
        self.resume(Conversation.load(path))

    def resume(self, conversation: Conversation) -> None:
        self.close()
        self.conversation = conversation

    def cancel(self) -> None:
        """End the running answer before its next token; from any thread."""
        if running := self._running:
            running.cancel.set()

    def close(self) -> None:
        """End the running answer at once; on the thread that reads it."""
        if self._running is not None:
            self._running.end()
            self._running = None

    def _written(self, step_index: int, turn: int | None) -> tuple[Conversation, Reply]:
        """Return the conversation up to an answer of this model, and the answer."""
        index = self.conversation.turn_at(turn)
        answer = self.conversation.turns[index].answer
        if not 0 <= step_index < len(answer.steps):
            raise SessionError(
                f"the answer has no step {step_index}: it has {len(answer.steps)}, from 0"
            )
        if answer.model is not None and self.source.fingerprint not in (None, answer.model):
            raise SessionError(
                f"another model wrote that answer ({answer.model}), and its token ids mean"
                " something else here: answer the question again first"
            )
        return self.conversation.until(index), answer

    def _new_reply(self, conversation: Conversation) -> Reply:
        """Return an answer with the next seed, or the same if the settings have changed."""
        settings, before, turn = self.settings, self._answered_with, conversation.last
        if turn.answers and before != settings and before.seed == settings.seed:
            seed = turn.answer.seed
        elif settings.seed is None:
            seed = secrets.randbits(SEED_BITS)
        else:
            seed = settings.seed + len(turn.answers)
        return Reply(seed, [], self.source.fingerprint)

    def _start(
        self, conversation: Conversation, reply: Reply, forced: list[int], cancel: Event | None
    ) -> Iterator[Step]:
        """Begin an answer, and make it part of the conversation."""
        cancel = cancel or Event()
        hooks = replace(self.hooks, cancel=cancel)
        asked = Asked(conversation, reply, self.settings, hooks, forced, self.on_answers)
        steps = _added(self.source.answer(asked), reply)
        # Nothing below raises: an answer that was refused has left the conversation unchanged.
        here = self.conversation
        if conversation.dropped > here.dropped and self.on_drop:
            self.on_drop(conversation.dropped)
        if forced:
            here.set_aside(len(conversation.turns) - 1)
        else:
            self._answered_with = self.settings
        here.turns, here.dropped = conversation.turns, conversation.dropped
        self._running = _Running(steps, cancel, here, here.last.selected, len(reply.steps))
        here.last.add(reply)
        return steps


def profile_of(settings: Settings, source: AnswerSource) -> Profile:
    """Return the profile that settings mean for the model of a source."""
    named = settings.profile
    profile = source.auto_profile if named == AUTO else Profile.load(named)
    return profile.replace(settings.changes)


def _index(turn: int | None) -> int | None:
    return None if turn is None else whole_number("turn", turn)


@dataclass(frozen=True)
class _Running:
    """An answer that was begun and may not have ended."""

    steps: Generator[Step, None, None]
    cancel: Event
    conversation: Conversation  # the answer is the selected one of its last turn
    selected: int  # index of the answer that was selected before
    kept: int  # steps that it took over from another answer

    def end(self) -> None:
        """End the answer; remove it if it has no step of its own and the turn has others."""
        self.steps.close()
        turn = self.conversation.turns[-1]
        if len(turn.answers) > 1 and len(turn.answer.steps) == self.kept:
            turn.answers.pop()
            turn.selected = self.selected
            self.conversation.bring_back(len(self.conversation.turns) - 1)


def _added(steps: Generator[Step, None, None], reply: Reply) -> Generator[Step, None, None]:
    with contextlib.closing(steps):
        for step in steps:
            reply.steps.append(step)
            yield step
