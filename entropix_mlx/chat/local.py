"""A model in this process as the source of a conversation.

What the KV cache holds of earlier prompts and answers is not computed again: of the next turn, an
edited question, or an answer with one token replaced, only the part behind the common beginning is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..answer.hooks import Hooks
from ..answer.selection import AnswerSelection
from ..answer.thinking import Thinking
from ..api.attention import attention_map
from ..api.learned import TokenCounts
from ..api.prompts import conversation_prompt
from ..api.runner import Runner
from ..api.score import distribution_after
from ..checkpoints.local import LocalModel, inventory
from ..engine.prompts import PromptCache
from ..engine.sequence import Sequence as TextSequence
from ..errors import ContextLengthError, SessionError
from ..models.base import LanguageModel
from ..models.config import fingerprint
from ..notes import Notes
from ..profiles.profile import Profile, profile_for
from ..profiles.sections import MOST_ANSWERS
from ..settings import ResolvedSettings, Settings
from ..step import AttentionMap, DrawDistribution, Step
from ..traces.trace import Header, TraceFolder
from .conversation import Conversation
from .session import AnswerSource, Asked, ChatSession

Loaded = tuple[LanguageModel, TokenizerWrapper]

ROOM = 0.25
"""The share of the context that stays free for the answer, unless `max_tokens` needs less."""
CACHE_BYTES = 2**31  # size of the KV cache of earlier texts
SHARE_AFTER_DROP = 0.5
"""Turns are dropped until the prompt takes at most this share of the context. The beginning of the
prompt changes, so nothing cached can be used; dropping many at a time makes that rare."""


class LocalSource(AnswerSource):
    """A model in this process; see `AnswerSource`.

    Attributes:
        several: the answers to the last question, and which of them is chosen; None where
            `settings.answers` is 1. The steps that are returned are those of the first answer. The
            others become answers of the turn after its last step, and the chosen one is selected.
    """

    _loaded: Loaded
    _runner: Runner
    _cache: PromptCache

    def __init__(
        self,
        model: str,
        load: Callable[[], Loaded],
        *,
        load_named: Callable[[str], Loaded] | None = None,
        traces: TraceFolder | None = None,
        notes: Notes | None = None,
    ) -> None:
        """Prepare a source, which loads nothing before `open`.

        Args:
            model: its name, for people.
            load: returns the model and its tokenizer, which must have a chat template.
            load_named: loads another model, by its name or path; None if there is no choice.
            traces: where each answer is recorded as it comes.
            notes: where passages are retrieved from.
        """
        self.model = model
        self.several: AnswerSelection | None = None
        self._load, self._load_named = load, load_named
        self._traces, self._notes = traces, notes
        self._answering: TextSequence | None = None

    def open(self, model: str | None = None) -> None:
        name, load = self.model, self._load
        if model is not None:
            if self._load_named is None:
                raise SessionError("there is no other model to choose")
            name, load = model, partial(self._load_named, model)
        self._answering = self.several = None
        with contextlib.suppress(AttributeError):
            del self._loaded, self._runner, self._cache  # before the next model is loaded
        self._loaded = load()
        self._cache = PromptCache(CACHE_BYTES)
        self._runner = Runner(*self._loaded, size=MOST_ANSWERS, cache=self._cache)
        self.model, self._load = name, load
        self.fingerprint = fingerprint(self._loaded[0].config)
        self.context_length = self._loaded[0].config.max_position_embeddings
        self._context = Context(self._loaded[1], self.context_length)

    def models(self) -> Sequence[LocalModel]:
        return list(inventory())

    @property
    def auto_profile(self) -> Profile:
        return profile_for(self._loaded[0].config)

    @property
    def counts(self) -> TokenCounts | None:
        counts: TokenCounts | None = self._loaded[0].counts
        return counts

    @property
    def cached_tokens(self) -> int:
        """Tokens of the last prompt and answer that the cache holds: all but the last one."""
        answering = self._answering
        return answering.length - 1 if answering is not None and answering.prefilled else 0

    def answer(self, asked: Asked) -> Generator[Step, None, None]:
        size = self._loaded[0].config.vocab_size
        if beyond := [token for token in asked.forced if not 0 <= token < size]:
            raise SessionError(f"there is no token {beyond[0]} in this model's vocabulary")
        resolved = self._checked(asked.settings).with_seed(asked.reply.seed)
        kept = [step.token for step in asked.reply.steps]
        if asked.forced:
            prompt = self._context.resumed(asked.conversation, kept)
        else:
            prompt = self._context.fit(asked.conversation, asked.settings.max_tokens)
        asked.reply.prompt_tokens = len(prompt) - len(kept)
        return self._generate(asked, prompt, resolved)

    def distribution(
        self, conversation: Conversation, steps: Sequence[Step], settings: Settings
    ) -> DrawDistribution:
        prompt = self._context.resumed(conversation, [])
        return distribution_after(*self._loaded, prompt, steps, self._checked(settings))

    def attention(self, conversation: Conversation, steps: Sequence[Step]) -> AttentionMap:
        prompt = self._context.resumed(conversation, [])
        before = [step.token for step in steps[:-1]]
        return attention_map(*self._loaded, prompt, before, self._cache)

    def _checked(self, settings: Settings) -> ResolvedSettings:
        """Return the settings of an answer; raise now what the runner would raise later."""
        model, tokenizer = self._loaded
        resolved = settings.resolved(model.config)
        Thinking(resolved.profile.think, tokenizer, model.config.vocab_size)  # checks its text
        if resolved.sampler.penalties is not None:
            resolved.sampler.penalties.check(model.config.vocab_size)
        return resolved

    def _generate(
        self, asked: Asked, prompt: list[int], resolved: ResolvedSettings
    ) -> Generator[Step, None, None]:
        kept, hooks = tuple(asked.reply.steps), asked.hooks
        if self._notes is not None:
            hooks = replace(hooks, retrieve=self._notes.about(asked.conversation.last.question))
        runner = self._runner
        first = runner.add(prompt, resolved, hooks, answered=kept, forced=asked.forced)
        self._answering, self.several = first, runner.selection(first)
        if self.several is None:
            steps = runner.stream(first)
        else:
            steps = self._first_of(self.several, runner.stream_all(first), asked)
        traced = steps
        if self._traces is not None:
            traced = self._traces.record(steps, self._header(asked, resolved), kept)
        with contextlib.closing(steps), contextlib.closing(traced):
            yield from traced

    def _first_of(
        self,
        several: AnswerSelection,
        stream: Generator[tuple[int, Step], None, None],
        asked: Asked,
    ) -> Generator[Step, None, None]:
        """Yield the steps of the first answer, then add the others to the turn."""
        with contextlib.closing(stream):
            for number, step in stream:
                if number == 0:
                    yield step
                if step.finish_reason and asked.on_answers is not None and several.complete:
                    asked.on_answers(several.standing)
        turn = asked.conversation.last
        chosen = turn.selected
        for candidate in several.candidates[1:]:
            if candidate.steps:
                turn.add(replace(asked.reply, seed=candidate.seed, steps=candidate.steps))
            if candidate is several.chosen:
                chosen = turn.selected
        turn.selected = chosen
        if asked.on_answers is not None and several.complete:
            asked.on_answers(several.standing)

    def _header(self, asked: Asked, resolved: ResolvedSettings) -> Header:
        return Header(
            model=self.model,
            sampler=asked.settings.sampler,
            profile=resolved.profile,
            seed=resolved.seed,
            messages=asked.conversation.prompt_messages,
            context_length=self.context_length,
            prompt_tokens=asked.reply.prompt_tokens,
            options=asked.settings.options,
            notes=str(self._notes.folder.absolute()) if self._notes else "",
        )


class Session(ChatSession):
    """A conversation with a model that was loaded; see `ChatSession`.

    Use it on the thread that loaded the model.
    """

    source: LocalSource

    def __init__(
        self,
        model: LanguageModel,
        tokenizer: TokenizerWrapper,
        settings: Settings | None = None,
        *,
        system_prompt: str | None = None,
        hooks: Hooks | None = None,
        traces: TraceFolder | None = None,
        notes: Notes | None = None,
    ) -> None:
        """Begin a conversation with a model and its tokenizer, which must have a chat template.

        Args:
            model, tokenizer: from `load`.
            settings, hooks: see `ChatSession`.
            system_prompt: instructions that precede the conversation, and are never dropped.
            traces, notes: see `LocalSource`.
        """
        name = "" if traces is None else traces.model
        source = LocalSource(name, lambda: (model, tokenizer), traces=traces, notes=notes)
        super().__init__(source, settings, system_prompt, hooks)
        source.open()

    @property
    def several(self) -> AnswerSelection | None:
        return self.source.several


@dataclass(frozen=True)
class Context:
    """The prompts that fit into the context of a model."""

    tokenizer: TokenizerWrapper  # it must have a chat template
    length: int  # tokens that the model can hold, those of the answer included

    def fit(self, conversation: Conversation, max_tokens: int) -> list[int]:
        """Return the prompt that asks the last question; drop the oldest turns if need be.

        The last question and the system prompt are never dropped. `conversation.dropped` is set to
        the number of turns left out, and nothing else is changed. Raises `ContextLengthError` if
        the last question alone does not fit. Raises `PromptError` if there is no chat template, or
        it refuses the messages.
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
        """Return the prompt that asks the last question, followed by tokens of an answer to it."""
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
