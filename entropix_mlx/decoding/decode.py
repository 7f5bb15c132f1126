"""The decode loop: a generator of `Step`s, and the only place where tokens are committed.

The loop is optimistic: while it reads position t, position t + 1 already runs with the token that
was drawn at t. When the host then sees that t asks for an intervention, it takes that token out of
the cache again and does that instead. A position's randomness depends on nothing but the seed and
the position, so a roll-back never changes a later draw.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from threading import Event

import mlx.core as mx
from mlx_lm.models.cache import KVCache
from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..errors import ContextLengthError, PromptError
from ..models.llama import AttentionLayers, Model
from ..policies.policy import Policy
from ..step import Alternative, Branch, ChosenBy, Origin, Step, Strategy
from .branching import Branching, Choose
from .engine import Pending, Reading, TextEngine, with_tokens
from .thinking import Thinking

TAIL = 8
"""Tokens before a fork that tell whether a full stop stands inside a number."""


def decode(
    model: Model,
    tokenizer: TokenizerWrapper,
    prompt: list[int],
    policy: Policy,
    *,
    max_tokens: int,
    seed: int,
    attention_layers: AttentionLayers = "last",
    top_logprobs: int = 0,
    cache: list[KVCache] | None = None,
    cancel: Event | None = None,
    on_prefill: Callable[[int, int], None] | None = None,
    choose: Choose | None = None,
    answered: Sequence[Step] = (),
    forced: Sequence[int] = (),
    pipelined: bool = True,
) -> Generator[Step, None, None]:
    """Generate from a prompt, one `Step` a token.

    Args:
        model: from `load`.
        tokenizer: from `load`.
        prompt: token ids that follow those in the cache; at least one.
        policy: from `make_policy`.
        max_tokens: the most tokens to generate; −1 for as many as the context holds.
        seed: with the position in the text, all that a draw depends on.
        attention_layers: which layers' attention is measured.
        top_logprobs: how many of the most probable tokens a step lists.
        cache: from `model.make_cache`, updated in place. When the loop ends, however it does, it
            holds all tokens of the text but the last, or fewer if the prefill did not end.
        cancel: checked after every token, in forks before every token of the rollouts, and before
            every chunk of the prefill; set it to stop.
        on_prefill: called with the prompt tokens processed so far and their number.
        choose: called at a fork whose two best rollouts score alike; it returns an index. Without
            it, the best one is taken.
        answered: the steps of an answer that is taken up again; the prompt ends with their tokens.
        forced: tokens to commit first, whatever is drawn; the user's choice.
        pipelined: whether to queue a position before the last one was read. The steps are the same.

    Raises:
        PromptError: the prompt is empty, or holds a token that the model does not have.
        ContextLengthError: the prompt leaves no room in the context.
        ProfileError: the thinking text does not fit the tokenizer.
        NonFiniteLogitsError: the model computed NaN or infinite logits.
    """
    if not prompt:
        raise PromptError("the prompt is empty: give at least one token")
    _check_tokens([*prompt, *forced], model.config.vocab_size)
    began = time.perf_counter()
    cancelled = cancel.is_set if cancel else lambda: False
    report = on_prefill or (lambda done, total: None)
    engine = TextEngine(
        model, cache or model.make_cache(), policy, seed, attention_layers, top_logprobs
    )
    start = engine.position + len(prompt)
    room = _room(model, start, max_tokens)
    if room == 0:
        return
    writer = _Writer(tokenizer, policy, len(answered) + room, began)
    loop = _Loop(
        engine,
        Thinking(policy.think, tokenizer, model.config.vocab_size),
        Branching(policy.rollouts, tokenizer, writer.untimed(choose)),
        writer,
        prompt,
        cancelled,
        pipelined,
        model.config.max_position_embeddings,
    )
    loop.take_up(answered)
    committed = 0
    with _wired_limit():
        try:
            engine.prefill(prompt[:-1], report, cancelled)
            if cancelled():
                return
            for step in loop.run(prompt[-1], forced, lambda: report(len(prompt), len(prompt))):
                committed += 1
                yield step
                if step.finish_reason or cancelled():
                    return
        finally:
            engine.shorten(start + committed - 1)


class _Loop:
    """What happens at one position after the other; it goes on until it is closed."""

    def __init__(
        self,
        engine: TextEngine,
        thinking: Thinking,
        branching: Branching,
        writer: _Writer,
        prompt: Sequence[int],
        cancelled: Callable[[], bool],
        pipelined: bool,
        context: int,
    ) -> None:
        self._engine = engine
        self._thinking = thinking
        self._branching = branching
        self._writer = writer
        self._tail = deque(prompt, maxlen=TAIL)
        self._cancelled = cancelled
        self._pipelined = pipelined
        self._context = context

    def take_up(self, answered: Sequence[Step]) -> None:
        """Continue after the steps of an answer."""
        for step in answered:
            self._observe(step)
            self._writer.skip(step)

    def run(self, last: int, forced: Sequence[int], on_start: Callable[[], None]) -> Iterator[Step]:
        """Yield the steps that follow the last token of a prompt, the rest of which is cached."""
        pending = self._queue(last)
        on_start()
        pending = yield from self._force(pending, forced, Origin.CHOSEN)
        while True:
            ahead = self._queue_ahead(pending)
            (reading,) = self._engine.read(pending)
            width = self._branching.width(self._writer.index, reading)
            if self._may_think and reading.decision.strategy is Strategy.THINK:
                self._take_back(ahead)
                pending = yield from self._think(pending)
            elif width > 1:
                self._take_back(ahead)
                pending = yield from self._branch(pending, reading, width)
            else:
                yield self._commit(reading, Origin.SAMPLED)
                pending = ahead or self._queue(reading.token)

    def _think(self, pending: Pending) -> Generator[Step, None, Pending]:
        return (yield from self._force(pending, self._thinking.tokens(), Origin.INSERTED))

    def _force(
        self, pending: Pending, tokens: Sequence[int], origin: Origin
    ) -> Generator[Step, None, Pending]:
        """Commit given tokens, the first of them in the place of one that was drawn."""
        rolled_back = 1
        for token in tokens:
            (drawn,) = self._engine.read(pending)
            (reading,) = with_tokens(pending, drawn, [token])
            yield self._commit(reading, origin, rolled_back=rolled_back)
            rolled_back = 0
            pending = self._queue(token)
        return pending

    def _branch(
        self, pending: Pending, reading: Reading, width: int
    ) -> Generator[Step, None, Pending]:
        """Follow a fork and commit the winner, whose tokens but the last are cached by then."""
        record: Branch | None
        record, readings = self._branching.follow(
            self._engine,
            pending,
            reading,
            width=width,
            room=self._context - self._engine.position,
            before=self._tail,
            cancelled=self._cancelled,
            pipelined=self._pipelined,
        )
        origin = Origin.CHOSEN if record.chosen_by is ChosenBy.USER else Origin.BRANCH
        rolled_back = 1
        for winner in readings:
            yield self._commit(winner, origin, record, rolled_back)
            record, rolled_back = None, 0
        return self._queue(readings[-1].token)

    def _commit(
        self,
        reading: Reading,
        origin: Origin,
        branch: Branch | None = None,
        rolled_back: int = 0,
    ) -> Step:
        if not self._may_think:
            reading = reading.without_thinking()
        step = self._writer.write(reading, origin, branch, rolled_back)
        self._observe(step)
        self._tail.append(step.token)
        return step

    @property
    def _may_think(self) -> bool:
        return self._thinking.allowed(self._writer.index)

    def _observe(self, step: Step) -> None:
        self._thinking.observe(step)
        self._branching.observe(step)

    def _queue(self, token: int) -> Pending:
        return self._engine.queue(mx.array([token]))

    def _queue_ahead(self, pending: Pending) -> Pending | None:
        """Queue the next position on the assumption that this one keeps its draw."""
        if not self._pipelined or self._writer.room == 1:
            return None
        return self._engine.queue(pending.drawn.token)

    def _take_back(self, ahead: Pending | None) -> None:
        if ahead is not None:
            self._engine.take_back()


class _Writer:
    """Turns what was read into `Step`s: text as it becomes printable, end of text, time."""

    def __init__(
        self, tokenizer: TokenizerWrapper, policy: Policy, limit: int, began: float
    ) -> None:
        self.index = 0
        self._tokenizer = tokenizer
        self._detokenizer = tokenizer.detokenizer
        self._detokenizer.reset()
        self._confidence = policy.confidence
        self._limit = limit
        self._began = began
        self._skipped = 0.0

    @property
    def room(self) -> int:
        """Steps that may still be written."""
        return self._limit - self.index

    def skip(self, step: Step) -> None:
        """Go on after a step that was written before, in its time too."""
        self._text(step.token, None)
        self.index = step.index + 1
        self._skipped = step.time

    def untimed(self, choose: Choose | None) -> Choose | None:
        """Return a function that asks as `choose` does; while a user thinks, the time stands."""
        if choose is None:
            return None

        def asked(branch: Branch) -> int:
            began = time.perf_counter()
            try:
                return choose(branch)
            finally:
                self._began += time.perf_counter() - began

        return asked

    def write(
        self, reading: Reading, origin: Origin, branch: Branch | None, rolled_back: int
    ) -> Step:
        """Return the next step."""
        strategy = reading.decision.strategy
        finish_reason = "length" if self.room == 1 else None
        if origin is Origin.INSERTED:
            strategy = Strategy.THINK
        elif reading.token in self._tokenizer.eos_token_ids:
            finish_reason = "stop"
        step = Step(
            index=self.index,
            token=reading.token,
            text=self._text(reading.token, finish_reason),
            logprob=reading.logprob,
            **reading.decision.metrics._asdict(),
            confidence=self._confidence.of(reading.decision.metrics),
            strategy=strategy,
            temperature=reading.decision.temperature,
            top_p=reading.decision.top_p,
            top_k=reading.decision.top_k,
            min_p=reading.decision.min_p,
            origin=origin,
            top_logprobs=tuple(
                Alternative(number, self._tokenizer.decode([number]), logprob)
                for number, logprob in reading.best
            ),
            branch=branch,
            rolled_back=rolled_back,
            finish_reason=finish_reason,
            time=self._skipped + time.perf_counter() - self._began,
        )
        self.index += 1
        return step

    def _text(self, token: int, finish_reason: str | None) -> str:
        if finish_reason != "stop":
            self._detokenizer.add_token(token)
        if finish_reason is not None:
            self._detokenizer.finalize()
        return str(self._detokenizer.last_segment)


def _check_tokens(tokens: Sequence[int], vocab_size: int) -> None:
    # MLX reads beyond an embedding without a word.
    if beyond := [token for token in tokens if not 0 <= token < vocab_size]:
        raise PromptError(
            f"there is no token {beyond[0]} in this model, which has {vocab_size}: leave that text"
            " out, or use the tokenizer that the model was trained with"
        )


def _room(model: Model, prompt_tokens: int, max_tokens: int) -> int:
    context = model.config.max_position_embeddings
    if prompt_tokens >= context:
        raise ContextLengthError(
            f"the prompt has {prompt_tokens} tokens, and the model's context holds {context}, the"
            " answer included: shorten the prompt"
        )
    room = context - prompt_tokens
    return room if max_tokens < 0 else min(max_tokens, room)


@contextlib.contextmanager
def _wired_limit() -> Iterator[None]:
    """Let Metal keep the model in wired memory while it runs, as mlx-lm does."""
    recommended = mx.device_info().get("max_recommended_working_set_size")
    if recommended is None:
        yield
        return
    before = mx.set_wired_limit(int(recommended))
    try:
        yield
    finally:
        mx.synchronize()
        mx.set_wired_limit(before)
