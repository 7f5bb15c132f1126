"""A conversation with a model, which computes only what is new.

The session knows which tokens its KV cache holds. When it needs the answer to a prompt (the next
turn, the same question again, an edited one, an answer with one token replaced), it shortens the
cache to the beginning that both have in common, and computes only the rest of the prompt.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from threading import Event

from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..answer.hooks import Choose, Hooks
from ..answer.selection import AnswerSelection
from ..answer.thinking import Thinking
from ..api.attention import attention_map
from ..api.prompts import conversation_prompt
from ..api.runner import RESOLVED, Budgets, Runner
from ..api.score import distribution_after
from ..engine.prompts import PromptCache
from ..engine.sequence import Sequence as TextSequence
from ..errors import ContextLengthError, EntropixError, SessionError
from ..models.base import LanguageModel
from ..models.config import fingerprint
from ..notes import Notes
from ..profiles.profile import Profile, resolve
from ..settings import ResolvedSettings, Settings
from ..step import AttentionMap, DrawDistribution, Step
from ..traces.trace import Header, TraceFolder
from .conversation import Conversation, Reply
from .session import ChatSession

ROOM = 0.25
"""The share of the context that stays free for the answer, unless `max_tokens` needs less."""
CACHE_BYTES = 2**31
"""Of the texts of a conversation that are kept in the KV cache."""
SHARE_AFTER_DROP = 0.5
"""Turns are dropped until the prompt takes at most this share of the context: dropping changes the
beginning of the prompt, which makes the KV cache useless, and so should be rare."""


class Session(ChatSession):
    """A conversation with a model in this process; see `ChatSession`.

    Use it on the thread that loaded its model.

    Attributes:
        notes: where passages are retrieved from, or None.
        several: where `settings.answers` is not 1: the answers to the last question, and which of
            them is chosen. The steps that are returned are those of the first one. The others come
            behind its last step; they become answers of the turn, with the chosen one selected.
            None for a single answer.
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
        """Begin a conversation with a model and its tokenizer, which must have a chat template.

        Args:
            model, tokenizer: from `load`.
            settings, on_prefill, on_drop, choose: see `ChatSession`.
            system_prompt: instructions that precede the conversation, and are never dropped.
            traces: where each answer is recorded as it comes.
        """
        super().__init__(settings, system_prompt)
        self.on_prefill, self.on_drop, self.choose = on_prefill, on_drop, choose
        self.fingerprint = fingerprint(model.config)
        self.notes: Notes | None = None
        self.several: AnswerSelection | None = None
        self._model, self._tokenizer = model, tokenizer
        self._traces = traces
        self.context_length = model.config.max_position_embeddings
        self._context = Context(tokenizer, self.context_length)
        self._cache = PromptCache(CACHE_BYTES)
        self._budgets: Budgets = deque(maxlen=RESOLVED)
        self._answering: TextSequence | None = None

    @property
    def context_used(self) -> int:
        if not self.conversation.turns:
            return 0
        turn = self.conversation.last
        answered = len(turn.answer.steps) if turn.answers else 0
        try:
            return (
                len(conversation_prompt(self._tokenizer, self.conversation.prompt_messages))
                + answered
            )
        except EntropixError:  # the template refuses an opened chat; the next question will say so
            return answered

    @property
    def cached_tokens(self) -> int:
        """Tokens of the last answer and its prompt, once that is read, but the last one."""
        answering = self._answering
        return answering.length - 1 if answering is not None and answering.prefilled else 0

    @property
    def profile(self) -> Profile:
        return resolve(self.settings.profile, self._model.config, self.settings.changes)

    def begin(
        self, conversation: Conversation, reply: Reply, forced: Sequence[int], cancel: Event
    ) -> Generator[Step, None, None]:
        size = self._model.config.vocab_size
        if beyond := [token for token in forced if not 0 <= token < size]:
            raise SessionError(f"there is no token {beyond[0]} in this model's vocabulary")
        resolved = self._checked_settings().with_seed(reply.seed)
        if forced:
            prompt = self._context.resumed(conversation, [step.token for step in reply.steps])
        else:
            prompt = self._context.fit(conversation, self.settings.max_tokens)
        return self._generate(conversation, reply, prompt, resolved, forced, cancel)

    def distribution(self, step_index: int, turn: int | None = None) -> DrawDistribution:
        prompt, answer = self._read_again(step_index, turn)
        resolved = self._checked_settings().with_seed(answer.seed)
        steps = answer.steps[: step_index + 1]
        return distribution_after(self._model, self._tokenizer, prompt, steps, resolved)

    def attention(self, step_index: int, turn: int | None = None) -> AttentionMap:
        prompt, answer = self._read_again(step_index, turn)
        before = [step.token for step in answer.steps[:step_index]]
        return attention_map(self._model, self._tokenizer, prompt, before, self._cache)

    def _read_again(self, step_index: int, turn: int | None) -> tuple[list[int], Reply]:
        """Return the prompt of an answer that has such a step, and the answer."""
        turn = self.conversation.turn_at(turn)
        answer = self.conversation.turns[turn].answer
        if not 0 <= step_index < len(answer.steps):
            raise SessionError(f"the answer has no token {step_index + 1}")
        if answer.model not in (None, self.fingerprint):
            raise SessionError("another model wrote that answer: answer the question again first")
        return self._context.resumed(self.conversation.until(turn), []), answer

    def _checked_settings(self) -> ResolvedSettings:
        """Return the settings of the next answer, or raise what the runner would raise later."""
        config = self._model.config
        resolved = self.settings.resolved(config)
        Thinking(resolved.profile.think, self._tokenizer, config.vocab_size)  # checks its text
        if resolved.sampler.penalties is not None:
            resolved.sampler.penalties.check(config.vocab_size)
        return resolved

    def _generate(
        self,
        conversation: Conversation,
        reply: Reply,
        prompt: list[int],
        resolved: ResolvedSettings,
        forced: Sequence[int],
        cancel: Event,
    ) -> Generator[Step, None, None]:
        before = tuple(reply.steps)
        retrieve = None
        if self.notes is not None:
            retrieve = self.notes.about(self.conversation.last.question)
        hooks = Hooks(cancel, self.on_prefill, self.choose, self.on_fork, retrieve)
        runner = Runner(
            self._model,
            self._tokenizer,
            size=resolved.most_answers,
            cache=self._cache,
            budgets=self._budgets,
        )
        first = runner.add(prompt, resolved, hooks, answered=before, forced=forced)
        self._answering, self.several = first, runner.selection(first)
        if self.several is None:
            steps = runner.stream(first)
        else:
            steps = self._first_of(self.several, runner.stream_all(first), conversation)
        traced = steps
        if self._traces is not None:
            header = self._header(self._traces.model, resolved, len(prompt) - len(before))
            traced = self._traces.record(steps, header, before)
        with contextlib.closing(steps), contextlib.closing(traced):
            yield from traced

    def _first_of(
        self,
        several: AnswerSelection,
        stream: Generator[tuple[int, Step], None, None],
        conversation: Conversation,
    ) -> Generator[Step, None, None]:
        """Yield the steps of the first answer, and add the others to the turn behind it."""
        with contextlib.closing(stream):
            for number, step in stream:
                if number == 0:
                    yield step
                if step.finish_reason:
                    self._report_standing(several)
        turn = conversation.last
        chosen = turn.selected
        for candidate in several.candidates[1:]:
            if candidate.steps:
                turn.add(Reply(candidate.seed, candidate.steps, self.fingerprint))
            if candidate is several.chosen:
                chosen = turn.selected
        turn.selected = chosen
        self._report_standing(several)

    def _report_standing(self, several: AnswerSelection) -> None:
        if self.on_answers is not None and several.complete:
            self.on_answers(several.standing)

    def _header(self, model: str, resolved: ResolvedSettings, prompt_tokens: int) -> Header:
        return Header(
            model=model,
            sampler=self.settings.sampler,
            profile=resolved.profile,
            seed=resolved.seed,
            messages=self.conversation.prompt_messages,
            context_length=self.context_length,
            prompt_tokens=prompt_tokens,
            options=self.settings.options,
            notes=str(self.notes.folder.absolute()) if self.notes else "",
        )


@dataclass(frozen=True)
class Context:
    """The context of one model, and the prompts that fit into it."""

    tokenizer: TokenizerWrapper
    """It must have a chat template."""
    length: int
    """Tokens that the model can hold, those of the answer included."""

    def fit(self, conversation: Conversation, max_tokens: int) -> list[int]:
        """Return the prompt that asks the last question; drop the oldest turns if need be.

        The last question and the system prompt are never dropped. `conversation.dropped` is set to
        the number of turns left out, and nothing else is changed.

        Raises:
            ContextLengthError: the last question alone does not fit.
            PromptError: there is no chat template, or it refuses the messages.
        """
        room = ROOM * self.length
        if max_tokens >= 0:
            room = min(room, max_tokens)
        last = len(conversation.turns) - 1
        conversation.dropped = min(conversation.dropped, last)
        prompt = self._encode(conversation)
        if len(prompt) > self.length - room:
            while conversation.dropped < last and len(prompt) > SHARE_AFTER_DROP * self.length:
                conversation.dropped += 1
                prompt = self._encode(conversation)
        return self._checked(prompt)

    def resumed(self, conversation: Conversation, answer: list[int]) -> list[int]:
        """Return the prompt that asks the last question, and the first tokens of an answer to
        it."""
        return self._checked(self._encode(conversation) + answer)

    def _encode(self, conversation: Conversation) -> list[int]:
        return conversation_prompt(self.tokenizer, conversation.prompt_messages)

    def _checked(self, prompt: list[int]) -> list[int]:
        if len(prompt) >= self.length:
            raise ContextLengthError(
                f"the message and what precedes it have {len(prompt)} tokens, and the model's"
                f" context holds {self.length}, the answer included: shorten the message"
            )
        return prompt
