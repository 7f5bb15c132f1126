"""What all chat sessions have in common: the conversation, and the answer that is being written.

`Session` answers with a model in this process. `chat.remote` asks a server, and
`chat.recorded` plays a recording.
"""

from __future__ import annotations

import contextlib
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event

from ..answer.hooks import Choose, OnFork
from ..answer.selection import AnswersStanding
from ..errors import PromptError, SessionError, check_type, whole_number
from ..profiles.confidence import AnswerMetrics, Verdict
from ..profiles.profile import Profile
from ..settings import SEED_BITS, Settings
from ..step import AttentionMap, DrawDistribution, Step
from .conversation import Conversation, Reply


class ChatSession(ABC):
    """Messages in, steps out.

    `send`, `regenerate` and `fork` return an iterator of steps. The question is part of the
    conversation at once, and the answer grows while the iterator is read. You may stop reading at
    any moment: the answer keeps the steps that were read, and the session can be used at once. Use
    a session on one thread; only `cancel` may be called from any thread.

    The three take a `cancel` token, an event that stops the answer before its next token once it is
    set, also if it was set before the call. Give each answer a token of its own.

    Attributes:
        settings: how to generate.
        conversation: the turns so far.
        choose: called at a fork whose two best branches score alike, as for `stream_generate`; None
            takes the best.
        on_fork: called while branches grow, as for `stream_generate`.
        on_answers: called when one of several answers to a question has ended, with how they stand.
        on_prefill: called with the prompt tokens processed so far and their number; those that were
            cached do not count.
        on_drop: called when the context is full, with the number of turns left out by then.
        fingerprint: of the model; None if it is not known.
        context_length: the most tokens that the model can hold.

    New values of these hold from the next answer on.
    """

    context_length: int

    def __init__(self, settings: Settings | None = None, system_prompt: str | None = None) -> None:
        check_type("settings", settings, Settings, optional=True)
        check_type("system_prompt", system_prompt, str, optional=True)
        self.settings = settings or Settings()
        self.conversation = Conversation(system_prompt)
        self.choose: Choose | None = None
        self.on_fork: OnFork | None = None
        self.on_answers: Callable[[AnswersStanding], None] | None = None
        self.on_prefill: Callable[[int, int], None] | None = None
        self.on_drop: Callable[[int], None] | None = None
        self.fingerprint: str | None = None
        self._running: _Running | None = None
        self._answered_with = self.settings

    @abstractmethod
    def begin(
        self, conversation: Conversation, reply: Reply, forced: Sequence[int], cancel: Event
    ) -> Generator[Step, None, None]:
        """Return the steps of an answer to the last question of a conversation.

        Errors are raised here, before the session changes anything.

        Args:
            conversation: ends with the question; turns that leave the context are counted in its
            `dropped`. reply: the answer, with the steps that it takes over. forced: tokens that
            come next in it; none where it begins anew. cancel: stops it.
        """

    @property
    @abstractmethod
    def context_used(self) -> int:
        """Tokens of the conversation that the model sees, its last answer included."""

    @property
    @abstractmethod
    def profile(self) -> Profile: ...

    @property
    def messages(self) -> list[dict[str, str]]:
        return self.conversation.messages

    @property
    def certainty(self) -> Verdict | None:
        """Whether the last answer is unsure, by the profile's threshold (``calibrate --abstain``).

        None without an answer or a threshold.
        """
        turns = self.conversation.turns
        if not turns or not turns[-1].answers:
            return None
        return self.profile.abstain.verdict(AnswerMetrics.of(turns[-1].answer.steps))

    def send(
        self, text: str, turn: int | None = None, *, cancel: Event | None = None
    ) -> Iterator[Step]:
        """Ask a question and return the steps of the answer.

        Args:
            turn: index in `conversation.turns` of a turn to replace, together with all that follow
                it; None asks after the last one.

        Raises:
            PromptError: the text is empty, or the chat template refuses the messages.
            ContextLengthError: the text alone does not fit into the context.
            SessionError: there is no such turn.
            SamplerError, ProfileError: the settings do not fit.
        """
        check_type("text", text, str)
        check_type("cancel", cancel, Event, optional=True)
        turn = None if turn is None else whole_number("turn", turn)
        self.close()
        if not text.strip():
            raise PromptError("the message is empty: write a question")
        return self._answer(self.conversation.asking(text, turn), cancel)

    def regenerate(self, *, cancel: Event | None = None) -> Iterator[Step]:
        """Answer the last question once more; the old answer stays beside it.

        The seed is the next one, or the same if the settings have changed since: then only they
        make the difference.

        Raises:
            SessionError: nothing was asked yet.
            SamplerError, ProfileError: the settings do not fit.
        """
        check_type("cancel", cancel, Event, optional=True)
        self.close()
        return self._answer(replace(self.conversation), cancel)

    def fork(
        self,
        step_index: int,
        token: int | Sequence[int],
        turn: int | None = None,
        *,
        cancel: Event | None = None,
    ) -> Iterator[Step]:
        """Put another token in the place of one of an answer, and go on from there.

        The steps before that token are taken over as they are: they are not computed again, and
        not returned. The old answer stays beside the new one, with the turns that followed it.

        Args:
            step_index: index of the step whose token is replaced.
            token: the id of the token to put there, or of several, such as a branch's.
            turn: index in `conversation.turns` of the answer's turn; None is the last one.

        Raises:
            SessionError: there is no such turn, step or token, or another model wrote that answer.
            ContextLengthError: the answer up to that step does not fit into the context.
            SamplerError, ProfileError: the settings do not fit.
        """
        check_type("cancel", cancel, Event, optional=True)
        turn = None if turn is None else whole_number("turn", turn)
        step_index = whole_number("step_index", step_index)
        given = token if isinstance(token, Sequence) else [token]
        tokens = [whole_number("token", each) for each in given]
        if not tokens:
            raise SessionError("there is no token to put there: give at least one")
        self.close()
        turn = self.conversation.turn_at(turn)
        old = self.conversation.turns[turn].answer
        reply = Reply(old.seed, old.before(step_index), self.fingerprint)
        if old.model is not None and self.fingerprint not in (None, old.model):
            raise SessionError(
                f"another model wrote that answer ({old.model}), and this one's tokens mean"
                " something else: answer the question again first"
            )
        return self._start(self.conversation.until(turn), reply, tokens, cancel)

    def distribution(self, step_index: int, turn: int | None = None) -> DrawDistribution:
        """Return what a step of an answer was drawn from: the probabilities at each step of the
        draw.

        The model reads the answer again up to that step, with the session's settings.

        Raises:
            SessionError: there is no such turn or step, or no model of this process.
        """
        raise SessionError(
            "only a local model shows what a token was drawn from: leave --server out"
        )

    def attention(self, step_index: int, turn: int | None = None) -> AttentionMap:
        """Return what a step of an answer looked at, as `api.attention.attention_map` does.

        Raises:
            SessionError: there is no such turn or step, or no model of this process.
            UnsupportedModelError: the model's attention cannot be read.
        """
        raise SessionError("only a local model shows what it looked at: leave --server out")

    def select(self, answer: int, turn: int | None = None) -> None:
        """Make another of a question's answers part of the conversation; see `Conversation`."""
        answer = whole_number("answer", answer)
        turn = None if turn is None else whole_number("turn", turn)
        self.close()
        self.conversation.select(answer, turn)

    def instruct(self, system_prompt: str | None) -> None:
        """Precede the conversation with other instructions, from the next answer on."""
        check_type("system_prompt", system_prompt, str, optional=True)
        self.close()
        self.conversation.system_prompt = system_prompt

    def new(self) -> None:
        self.close()
        self.conversation = Conversation(self.conversation.system_prompt)

    def save(self, path: str | Path) -> None:
        self.close()
        self.conversation.save(path)

    def load(self, path: str | Path) -> None:
        """Go on with a saved conversation in place of this one; see `Conversation.load`."""
        self.resume(Conversation.load(path))

    def resume(self, conversation: Conversation) -> None:
        self.close()
        self.conversation = conversation

    def cancel(self) -> None:
        """Stop the running answer before its next token; from any thread."""
        if running := self._running:
            running.cancel.set()

    def close(self) -> None:
        """Stop the running answer at once; on the thread that reads it."""
        if self._running is not None:
            self._running.end()
            self._running = None

    def _answer(self, conversation: Conversation, cancel: Event | None) -> Iterator[Step]:
        """Answer the last question with a seed of its own, unless the settings have changed."""
        settings, before = self.settings, self._answered_with
        seed, turn = settings.seed, conversation.last
        own = secrets.randbits(SEED_BITS) if seed is None else seed + len(turn.answers)
        if turn.answers and before != settings and before.seed == seed:
            own = turn.answer.seed
        self._answered_with = settings
        return self._start(conversation, Reply(own, [], self.fingerprint), [], cancel)

    def _start(
        self, conversation: Conversation, reply: Reply, forced: list[int], cancel: Event | None
    ) -> Iterator[Step]:
        """Make an answer part of the conversation, which becomes the given one."""
        cancel = cancel or Event()
        steps = _added(self.begin(conversation, reply, forced, cancel), reply)
        # Nothing below raises: an answer that was refused has left the conversation unchanged.
        here = self.conversation
        if conversation.dropped > here.dropped and self.on_drop:
            self.on_drop(conversation.dropped)
        if forced:
            here.set_aside(len(conversation.turns) - 1)
        here.turns, here.dropped = conversation.turns, conversation.dropped
        self._running = _Running(steps, cancel, here, here.last.selected, len(reply.steps))
        here.last.add(reply)
        return steps


@dataclass(frozen=True)
class _Running:
    """An answer that was begun and may not have ended."""

    steps: Generator[Step, None, None]
    cancel: Event
    conversation: Conversation
    """Its last turn's selected answer is this one."""
    selected: int
    """The selected answer before this one."""
    taken_over: int
    """Steps that it took over from another answer."""

    def end(self) -> None:
        """Stop; an answer without a step of its own is removed if the turn has others."""
        self.steps.close()
        turn = self.conversation.turns[-1]
        if len(turn.answers) > 1 and len(turn.answer.steps) == self.taken_over:
            turn.answers.pop()
            turn.selected = self.selected
            self.conversation.bring_back(len(self.conversation.turns) - 1)


def _added(steps: Generator[Step, None, None], reply: Reply) -> Generator[Step, None, None]:
    with contextlib.closing(steps):
        for step in steps:
            reply.steps.append(step)
            yield step
