"""A conversation with a model, that never computes again what is in its cache.

The session knows which tokens its cache holds. Whatever the next prompt is (the next turn, the same
question again, an edited one, an answer with another token in it), the cache is shortened to what
the two have in common, and only the rest is computed.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from threading import Event
from typing import NamedTuple

from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..decoding.branching import Choose
from ..decoding.decode import decode
from ..decoding.prompts import Message, conversation_prompt
from ..decoding.thinking import Thinking
from ..errors import ContextLengthError, PromptError, SessionError
from ..models.cache import trim
from ..models.llama import Model
from ..policies.policy import Policy
from ..profiles.choice import fingerprint
from ..settings import Settings
from ..step import Step
from ..traces.trace import Header, TraceFolder, TraceWriter
from .conversation import Answer, Conversation, Turn

ROOM = 0.25
"""The share of the context that an answer must have before it, unless it may only be shorter."""
KEPT = 0.5
"""When old turns must go, the prompt is cut to this share of the context: the cache holds for the
next few turns then."""


class _Running(NamedTuple):
    """An answer that was begun, and what to go back to if it does not get a token of its own."""

    steps: Generator[Step, None, None]
    turn: Turn
    kept: int
    """Steps that the answer took over from another."""
    selected: int
    """The turn's answer before it."""


class Session:
    """Messages in, steps out.

    `send`, `regenerate`, `edit` and `fork` return an iterator of steps. The question is part of the
    conversation at once, the answer grows as the iterator is read. It may be left at any moment:
    the answer stays as far as it came, and the session can be used at once. All this belongs
    on the thread that loaded the model; `cancel` may be called from any.
    """

    def __init__(
        self,
        model: Model,
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
            settings: how to generate; it may be replaced between two turns.
            system_prompt: instructions that precede the conversation, and are never dropped.
            on_prefill: called with the prompt tokens processed so far and their number; those that
                were cached do not count.
            on_drop: called when the context is full, with the number of turns left out by then.
            choose: see `stream_generate`.
            traces: where each answer is recorded as it comes.
        """
        self.settings = settings or Settings()
        self.conversation = Conversation(system_prompt)
        self._model = model
        self._tokenizer = tokenizer
        self._on_prefill = on_prefill
        self._on_drop = on_drop
        self.choose = choose
        self._traces = traces
        self._cancel = Event()
        self._cache = model.make_cache()
        self._cached: list[int] = []
        self._fingerprint = fingerprint(model.config)
        self._running: _Running | None = None

    @property
    def messages(self) -> list[Message]:
        """The whole conversation, as chat templates read it."""
        return self.conversation.messages

    @property
    def cached_tokens(self) -> int:
        """Tokens in the cache."""
        return len(self._cached)

    def send(self, text: str) -> Iterator[Step]:
        """Ask a question and return the steps of the answer.

        Raises:
            PromptError: the text is empty, or the chat template refuses the messages.
            ContextLengthError: the text alone does not fit into the context.
            PolicyError, ProfileError: the settings do not fit.
        """
        return self._ask(len(self.conversation.turns), text)

    def regenerate(self) -> Iterator[Step]:
        """Answer the last question once more, with the next seed; the old answer is kept beside.

        Raises:
            SessionError: nothing was asked yet.
            PolicyError, ProfileError: the settings do not fit.
        """
        self._settle()
        turn = self._last_turn()
        policy = self._policy()
        prompt = self._fit(self.conversation.turns)
        return self._start(turn, self._new_answer(self._seed(turn)), prompt, policy)

    def edit(self, message: int, text: str) -> Iterator[Step]:
        """Put another question in the place of one, drop what followed, and return the answer.

        Args:
            message: index in `messages`, of a question.
            text: the new question.

        Raises:
            SessionError: there is no question at that index.
            PromptError, ContextLengthError, PolicyError, ProfileError: as for `send`.
        """
        messages = self.messages
        if not -len(messages) <= message < len(messages):
            raise SessionError(f"there is no message {message}: there are {len(messages)}")
        message %= len(messages)
        if messages[message]["role"] != "user":
            raise SessionError(f"message {message} is no question: only questions can be edited")
        return self._ask(sum(m["role"] == "user" for m in messages[:message]), text)

    def fork(self, step_index: int, token: int) -> Iterator[Step]:
        """Put another token in the place of one of the last answer, and go on from there.

        The answer before that token is not computed again, and is not among the steps returned. The
        old answer is kept beside the new one.

        Args:
            step_index: index of the step whose token is replaced.
            token: the id of the token to put there.

        Raises:
            SessionError: there is no such step or token, or another model wrote that answer.
            ContextLengthError: the answer up to that step does not fit into the context.
            PolicyError, ProfileError: the settings do not fit.
        """
        self._settle()
        turn = self._last_turn()
        old = turn.answer
        if not 0 <= step_index < len(old.steps):
            raise SessionError(
                f"the last answer has no step {step_index}: it has {len(old.steps)}, from 0"
            )
        if not 0 <= token < self._model.config.vocab_size:
            raise SessionError(f"there is no token {token} in this model's vocabulary")
        if old.model not in (None, self._fingerprint):
            raise SessionError(
                f"another model wrote the last answer ({old.model}), and this one's tokens mean"
                " something else: answer the question again first"
            )
        policy = self._policy()
        prompt = self._encode(self.conversation.turns, self.conversation.dropped)
        kept = old.steps[:step_index]
        prompt = prompt + [step.token for step in kept]
        self._check_room(prompt)
        return self._start(turn, self._new_answer(old.seed, kept), prompt, policy, forced=[token])

    def select(self, answer: int) -> None:
        """Make another of the last question's answers part of the conversation.

        Raises:
            SessionError: there is no such answer.
        """
        self._settle()
        turn = self._last_turn()
        if not 0 <= answer < len(turn.answers):
            raise SessionError(
                f"the last question has no answer {answer}: it has {len(turn.answers)}, from 0"
            )
        turn.selected = answer

    def cancel(self) -> None:
        """Stop the running answer before its next token; from any thread."""
        self._cancel.set()

    def close(self) -> None:
        """Stop the running answer at once; on the thread that reads it."""
        self._settle()

    def instruct(self, system_prompt: str | None) -> None:
        """Precede the conversation with other instructions, from the next answer on."""
        self._settle()
        self.conversation.system_prompt = system_prompt

    def new(self) -> None:
        """Begin another conversation, with the same system prompt."""
        self._settle()
        self.conversation = Conversation(self.conversation.system_prompt)

    def save(self, path: str | Path) -> None:
        """Write the conversation as JSON.

        Raises:
            SessionError: the file cannot be written.
        """
        self._settle()
        self.conversation.save(path)

    def load(self, path: str | Path) -> None:
        """Go on with a saved conversation in place of this one.

        Raises:
            SessionError: there is no such file, or it is not a conversation.
        """
        conversation = Conversation.load(path)
        self._settle()
        self.conversation = conversation

    def _ask(self, number: int, text: str) -> Iterator[Step]:
        """Make a question the turn of that number, the last one, and answer it."""
        self._settle()
        if not text.strip():
            raise PromptError("the message is empty: write a question")
        conversation = self.conversation
        turn = Turn(text)
        turns = [*conversation.turns[:number], turn]
        policy = self._policy()
        prompt = self._fit(turns)
        conversation.turns = turns
        return self._start(turn, self._new_answer(self._seed(turn)), prompt, policy)

    def _policy(self) -> Policy:
        """Return the policy of the next answer; what is wrong with it shows before that begins."""
        config = self._model.config
        policy = self.settings.resolved(config).policy()
        Thinking(policy.think, self._tokenizer, config.vocab_size)
        return policy

    def _new_answer(self, seed: int, kept: Sequence[Step] = ()) -> Answer:
        return Answer(seed, list(kept), self._fingerprint)

    def _start(
        self,
        turn: Turn,
        answer: Answer,
        prompt: list[int],
        policy: Policy,
        forced: Sequence[int] = (),
    ) -> Iterator[Step]:
        steps = self._stream(answer, prompt, policy, forced)
        self._running = _Running(steps, turn, len(answer.steps), turn.selected)
        turn.answers.append(answer)
        turn.selected = len(turn.answers) - 1
        self._cancel.clear()
        return steps

    def _stream(
        self, answer: Answer, prompt: list[int], policy: Policy, forced: Sequence[int]
    ) -> Generator[Step, None, None]:
        # The last token must be computed again: what follows it was not kept.
        common = _common_length(self._cached, prompt[:-1])
        trim(self._cache, common)
        self._cached = prompt[:common]
        known = list(prompt)
        steps = decode(
            self._model,
            self._tokenizer,
            prompt[common:],
            policy,
            max_tokens=self.settings.max_tokens,
            seed=answer.seed,
            attention_layers=self.settings.attention_layers,
            top_logprobs=self.settings.top_logprobs,
            cache=self._cache,
            cancel=self._cancel,
            on_prefill=self._on_prefill,
            choose=self.choose,
            answered=tuple(answer.steps),
            forced=forced,
        )
        try:
            with contextlib.closing(steps), self._recording(answer, len(prompt), policy) as trace:
                for step in steps:
                    answer.steps.append(step)
                    known.append(step.token)
                    if trace:
                        trace.add(step)
                    yield step
        finally:
            self._cached = known[: self._cache[0].offset]

    @contextlib.contextmanager
    def _recording(
        self, answer: Answer, prompt_tokens: int, policy: Policy
    ) -> Iterator[TraceWriter | None]:
        """Begin the trace of an answer, with the steps that it took over from another."""
        if self._traces is None:
            yield None
            return
        header = Header(
            model=self._traces.model,
            sampler=self.settings.sampler,
            profile=policy.profile,
            seed=answer.seed,
            messages=self.conversation.asked,
            context_length=self._model.config.max_position_embeddings,
            prompt_tokens=prompt_tokens - len(answer.steps),
        )
        with self._traces.begin(header) as trace:
            for step in answer.steps:
                trace.add(step)
            yield trace

    def _settle(self) -> None:
        """End the running answer; one without a token of its own makes way for the one before."""
        if self._running is None:
            return
        steps, turn, kept, selected = self._running
        steps.close()
        self._running = None
        if len(turn.answers) > 1 and len(turn.answer.steps) == kept:
            turn.answers.pop()
            turn.selected = selected

    def _seed(self, turn: Turn) -> int:
        """Return the seed of a turn's next answer: each has another."""
        if self.settings.seed is None:
            return secrets.randbits(32)
        return self.settings.seed + len(turn.answers)

    def _last_turn(self) -> Turn:
        if not self.conversation.turns:
            raise SessionError("nothing was asked yet: send a question first")
        return self.conversation.turns[-1]

    def _fit(self, turns: list[Turn]) -> list[int]:
        """Return the prompt that asks the last of some turns; drop old ones if they do not fit."""
        context = self._model.config.max_position_embeddings
        most = self.settings.max_tokens
        room = ROOM * context if most < 0 else min(ROOM * context, most)
        last = len(turns) - 1
        # Where turns were taken away, there may be space again for older ones.
        dropped = self.conversation.dropped if len(turns) >= len(self.conversation.turns) else 0
        prompt = self._encode(turns, min(dropped, last))
        if len(prompt) > context - room:
            while dropped < last and len(prompt) > KEPT * context:
                dropped += 1
                prompt = self._encode(turns, dropped)
        self._check_room(prompt)
        if dropped > self.conversation.dropped and self._on_drop:
            self._on_drop(dropped)
        self.conversation.dropped = dropped
        return prompt

    def _check_room(self, prompt: list[int]) -> None:
        context = self._model.config.max_position_embeddings
        if len(prompt) >= context:
            raise ContextLengthError(
                f"the message and what precedes it have {len(prompt)} tokens, and the model's"
                f" context holds {context}, the answer included: shorten the message"
            )

    def _encode(self, turns: Sequence[Turn], first: int) -> list[int]:
        """Return the prompt that asks the last of some turns, the first few left out."""
        asked = Turn(turns[-1].question)
        part = Conversation(self.conversation.system_prompt, [*turns[first:-1], asked])
        return conversation_prompt(self._tokenizer, part.messages)


def _common_length(left: Sequence[int], right: Sequence[int]) -> int:
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return min(len(left), len(right))
