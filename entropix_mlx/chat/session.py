"""A conversation with a model, which computes only what is new.

The session knows which tokens its KV cache holds. When it needs the answer to a prompt (the next
turn, the same question again, an edited one, an answer with one token replaced), it shortens the
cache to the beginning that both have in common, and computes only the rest of the prompt.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Event

from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..answer.hooks import Choose, Hooks, OnFork
from ..api.prompts import Message
from ..engine.cached_text import CachedText
from ..engine.job import Job
from ..engine.runner import decode
from ..engine.speculation.draft_model import Draft
from ..errors import PromptError, check_type, whole_number
from ..models.base import LanguageModel
from ..models.config import fingerprint
from ..notes.notes import Notes
from ..profiles.confidence import AnswerMetrics, Verdict
from ..samplers.base import Sampler
from ..settings import Settings
from ..step import Step
from ..traces.trace import TraceFolder
from .checking import check_writer, checked_sampler, checked_tokens
from .context import Context
from .conversation import Answer, Conversation
from .running import Running, header_of, retrieve_of


class Session:
    """Messages in, steps out.

    `send`, `regenerate`, `edit` and `fork` return an iterator of steps. The question is part of the
    conversation at once, and the answer grows while the iterator is read. You may stop reading at
    any moment: the answer keeps the steps that were read, and the session can be used at once. Use
    a session on the thread that loaded its model; only `cancel` may be called from any thread.

    The four take a `cancel` token, an event that stops the answer before its next token once it is
    set, also if it was set before the call. Give each answer a token of its own.

    Attributes:
        settings: how to generate; a new value holds from the next answer on.
        conversation: the turns so far.
        choose: called at a fork whose two best rollouts score alike, as for `stream_generate`; None
            takes the best. A new value holds from the next answer on.
        on_fork: told while rollouts grow, as for `stream_generate`; likewise.
        notes: where things are looked up, or None; likewise.
        draft_model: guesses what comes next, as for `stream_generate`; likewise.
    """

    def __init__(
        self,
        model: LanguageModel,
        tokenizer: TokenizerWrapper,
        settings: Settings | None = None,
        *,
        system_prompt: str | None = None,
        on_prefill: Callable[[int, int], None] | None = None,
        on_drop: Callable[[int], None] | None = None,
        choose: Choose | None = None,
        traces: TraceFolder | None = None,
    ) -> None:
        """Begin a conversation.

        Args:
            model: from `load`.
            tokenizer: from `load`; it must have a chat template.
            settings: how to generate.
            system_prompt: instructions that precede the conversation, and are never dropped.
            on_prefill: called with the prompt tokens processed so far and their number; those that
                were cached do not count.
            on_drop: called when the context is full, with the number of turns left out by then.
            choose: see the class.
            traces: where each answer is recorded as it comes.
        """
        check_type("settings", settings, Settings, optional=True)
        check_type("system_prompt", system_prompt, str, optional=True)
        self.settings = settings or Settings()
        self.conversation = Conversation(system_prompt)
        self.choose = choose
        self.on_fork: OnFork | None = None
        self.notes: Notes | None = None
        self.draft_model: Draft | None = None
        self._model, self._tokenizer = model, tokenizer
        self._on_prefill, self._on_drop = on_prefill, on_drop
        self._traces = traces
        self._context = Context(tokenizer, model.config.max_position_embeddings)
        self._text = CachedText.empty(model)
        self._fingerprint = fingerprint(model.config)
        self._running: Running | None = None

    @property
    def messages(self) -> list[Message]:
        """The whole conversation, in the form that chat templates read."""
        return self.conversation.messages

    @property
    def context_length(self) -> int:
        """The most tokens that the model can hold."""
        return self._model.config.max_position_embeddings

    @property
    def cached_tokens(self) -> int:
        """Tokens in the cache."""
        return len(self._text.ids)

    @property
    def certainty(self) -> Verdict | None:
        """Whether the last answer is unsure, by the session's profile.

        None where nothing was answered yet, or the profile has no threshold: ``entropix calibrate
        --abstain`` sets one.
        """
        turns = self.conversation.turns
        if not turns or not turns[-1].answers:
            return None
        settings = self.settings.resolved(self._model.config)
        return settings.verdict(AnswerMetrics.of(turns[-1].answer.steps))

    def send(
        self, text: str, turn: int | None = None, *, cancel: Event | None = None
    ) -> Iterator[Step]:
        """Ask a question and return the steps of the answer.

        Args:
            text: the question.
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

    def edit(self, message: int, text: str, *, cancel: Event | None = None) -> Iterator[Step]:
        """Replace a question, drop all that followed it, and return the steps of the answer.

        Args:
            message: index in `messages`, of a question; a negative one counts from the end.
            text: the new question.

        Raises:
            SessionError: there is no question at that index.
            PromptError, ContextLengthError, SamplerError, ProfileError: as for `send`.
        """
        turn = self.conversation.turn_of(whole_number("message", message))
        return self.send(text, turn, cancel=cancel)

    def regenerate(self, *, cancel: Event | None = None) -> Iterator[Step]:
        """Answer the last question once more, with the next seed; the old answer is kept beside.

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
        not returned. The old answer is kept beside the new one, with the turns that followed it.

        Args:
            step_index: index of the step whose token is replaced.
            token: the id of the token to put there, or of several, such as a rollout's.
            turn: index in `conversation.turns` of the answer's turn; None is the last one.

        Raises:
            SessionError: there is no such turn, step or token, or another model wrote that answer.
            ContextLengthError: the answer up to that step does not fit into the context.
            SamplerError, ProfileError: the settings do not fit.
        """
        check_type("cancel", cancel, Event, optional=True)
        turn = None if turn is None else whole_number("turn", turn)
        step_index = whole_number("step_index", step_index)
        tokens = checked_tokens(token, self._model.config.vocab_size)
        self.close()
        turn = self.conversation.turn_at(turn)
        old = self.conversation.turns[turn].answer
        kept = old.before(step_index)
        check_writer(old, self._fingerprint)
        sampler = checked_sampler(self.settings, self._model, self._tokenizer)
        asked = self.conversation.until(turn)
        prompt = self._context.resumed(asked, [step.token for step in kept])
        # Nothing below raises.
        self.conversation.set_aside(turn)
        answer = Answer(old.seed, kept, self._fingerprint)
        return self._start(answer, prompt, sampler, cancel, forced=tokens)

    def adopt(self, text: str, turn: int | None, seed: int, steps: Sequence[Step]) -> None:
        """Add a question, in the place of a turn as for `send`, and an answer of this model to it.

        Raises:
            SessionError: there is no such turn.
        """
        self.close()
        self.conversation.adopt(text, turn, Answer(seed, list(steps), self._fingerprint))

    def select(self, answer: int, turn: int | None = None) -> None:
        """Make another of a question's answers part of the conversation.

        The turns after it stay with the answer that was selected so far; those that once followed
        the other one come back.

        Args:
            answer: index of the answer.
            turn: index in `conversation.turns` of the question; None is the last one.

        Raises:
            SessionError: there is no such turn or answer.
        """
        answer = whole_number("answer", answer)
        turn = None if turn is None else whole_number("turn", turn)
        self.close()
        self.conversation.select(answer, turn)

    def cancel(self) -> None:
        """Stop the running answer before its next token; from any thread."""
        if running := self._running:
            running.cancel.set()

    def close(self) -> None:
        """Stop the running answer at once; on the thread that reads it."""
        if self._running is not None:
            self._running.end()
            self._running = None

    def instruct(self, system_prompt: str | None) -> None:
        """Precede the conversation with other instructions, from the next answer on."""
        check_type("system_prompt", system_prompt, str, optional=True)
        self.close()
        self.conversation.system_prompt = system_prompt

    def new(self) -> None:
        """Begin another conversation, with the same system prompt."""
        self.close()
        self.conversation = Conversation(self.conversation.system_prompt)

    def save(self, path: str | Path) -> None:
        """Write the conversation as JSON.

        Raises:
            SessionError: the file cannot be written.
        """
        self.close()
        self.conversation.save(path)

    def load(self, path: str | Path) -> None:
        """Go on with a saved conversation in place of this one.

        Raises:
            SessionError: there is no such file, or it is not a conversation.
        """
        self.resume(Conversation.load(path))

    def resume(self, conversation: Conversation) -> None:
        """Go on with a conversation in place of this one."""
        self.close()
        self.conversation = conversation

    def _answer(self, asked: Conversation, cancel: Event | None) -> Iterator[Step]:
        """Answer the last question of a conversation, whose turns become this session's."""
        turn = asked.last
        sampler = checked_sampler(self.settings, self._model, self._tokenizer)
        prompt = self._context.fit(asked, self.settings.max_tokens)
        # Nothing below raises: an answer that was refused has left this conversation unchanged.
        if asked.dropped > self.conversation.dropped and self._on_drop:
            self._on_drop(asked.dropped)
        self.conversation.turns, self.conversation.dropped = asked.turns, asked.dropped
        seed = self.settings.seed
        # Each answer to one question is drawn with another seed.
        seed = secrets.randbits(32) if seed is None else seed + len(turn.answers)
        return self._start(Answer(seed, [], self._fingerprint), prompt, sampler, cancel)

    def _start(
        self,
        answer: Answer,
        prompt: list[int],
        sampler: Sampler,
        cancel: Event | None,
        forced: Sequence[int] = (),
    ) -> Iterator[Step]:
        turn = self.conversation.last
        cancel = cancel or Event()
        steps = self._stream(answer, prompt, sampler, cancel, forced)
        self._running = Running(steps, cancel, self.conversation, turn.selected, len(answer.steps))
        turn.add(answer)
        return steps

    def _stream(
        self,
        answer: Answer,
        prompt: list[int],
        sampler: Sampler,
        cancel: Event,
        forced: Sequence[int],
    ) -> Generator[Step, None, None]:
        """Yield the steps that follow a prompt, and add them to the answer."""
        kept = tuple(answer.steps)
        retrieve = retrieve_of(self.notes, self.conversation)
        job = Job.of_settings(
            prompt,
            replace(self.settings, seed=answer.seed),
            sampler,
            answered=kept,
            forced=forced,
            hooks=Hooks(
                cancel, self._on_prefill, self.choose, self.on_fork, retrieve, self.draft_model
            ),
        )
        steps = traced = decode(self._model, self._tokenizer, job, self._text)
        if self._traces is not None:
            own = len(prompt) - len(kept)
            header = header_of(self, self._traces.model, answer.seed, sampler.profile, own)
            traced = self._traces.record(steps, header, kept)
        with contextlib.closing(steps), contextlib.closing(traced):
            for step in traced:
                answer.steps.append(step)
                yield step
