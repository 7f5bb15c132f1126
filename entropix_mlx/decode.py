"""The decode loop: a generator of `Step`s, and the only place where tokens are committed.

The loop is optimistic: while it reads position t, position t + 1 already runs with the token that
was drawn at t. When the host then sees that t asked for something else than its draw, it takes that
token out of the cache again and goes on from what was asked for. A position's randomness depends on
nothing but the seed and the position, so a roll-back never changes a later draw.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator
from threading import Event

import mlx.core as mx
from mlx_lm.models.cache import KVCache
from mlx_lm.tokenizer_utils import TokenizerWrapper

from .engine import Engine, Pending, Reading, logprob_of
from .errors import ContextLengthError, PromptError
from .llama import AttentionLayers, Model
from .plan import Policy
from .step import Alternative, Origin, Step, Strategy
from .thinking import Thinking

CLEAR_EVERY = 256
"""Tokens between two releases of MLX's unused buffers."""


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
    pipelined: bool = True,
) -> Iterator[Step]:
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
            holds all committed tokens but the last.
        cancel: checked before every token and every chunk of the prefill; set it to stop.
        on_prefill: called with the prompt tokens processed so far and their number.
        pipelined: whether to queue a position before the last one was read. The steps are the same.

    Raises:
        PromptError: the prompt is empty.
        ContextLengthError: the prompt leaves no room in the context.
        ProfileError: the thinking text does not fit the tokenizer.
        NonFiniteLogitsError: the model computed NaN or infinite logits.
    """
    if not prompt:
        raise PromptError("the prompt is empty: give at least one token")
    began = time.perf_counter()
    cancelled = cancel.is_set if cancel else lambda: False
    report = on_prefill or (lambda done, total: None)
    engine = Engine(
        model, cache or model.make_cache(), policy, seed, attention_layers, top_logprobs
    )
    limit = _token_limit(model, engine.position + len(prompt), max_tokens)
    if limit == 0:
        return
    thinking = Thinking(policy.profile.think, tokenizer, model.config.vocab_size)
    writer = _Writer(tokenizer, policy, limit, began)
    with _wired_limit():
        engine.prefill(prompt[:-1], report, cancelled)
        if cancelled():
            return
        first = engine.queue(mx.array(prompt[-1:]), thinking.allowed(0))
        report(len(prompt), len(prompt))
        yield from _commit(engine, thinking, writer, first, limit, cancelled, pipelined)


def _commit(
    engine: Engine,
    thinking: Thinking,
    writer: _Writer,
    pending: Pending,
    limit: int,
    cancelled: Callable[[], bool],
    pipelined: bool,
) -> Iterator[Step]:
    """Read positions, intervene where asked to, and commit one token after the other."""
    start = engine.position
    forced: deque[int] = deque()
    try:
        for index in range(limit):
            ahead = None
            if pipelined and not forced and index + 1 < limit:
                ahead = engine.queue(pending.drawn.token, thinking.allowed(index + 1))
            reading = engine.read(pending)
            if reading.decision.strategy is Strategy.THINK and not forced:
                forced.extend(thinking.insert(index))
                if ahead is not None:
                    engine.roll_back()
                    ahead = None
            if forced:
                step = writer.inserted(index, pending, reading, forced.popleft())
            else:
                step = writer.drawn(index, reading)
            yield step
            if step.finish_reason or cancelled():
                return
            pending = ahead or engine.queue(mx.array([step.token]), thinking.allowed(index + 1))
            if index % CLEAR_EVERY == CLEAR_EVERY - 1:
                mx.clear_cache()
    finally:
        while engine.position > start + index:
            engine.roll_back()


class _Writer:
    """Turns what was read into `Step`s: text as it becomes printable, end of text, time."""

    def __init__(
        self, tokenizer: TokenizerWrapper, policy: Policy, limit: int, began: float
    ) -> None:
        self._tokenizer = tokenizer
        self._detokenizer = tokenizer.detokenizer
        self._detokenizer.reset()
        self._confidence = policy.profile.confidence
        self._limit = limit
        self._began = began

    def drawn(self, index: int, reading: Reading) -> Step:
        """Return the step of a token that was drawn."""
        ends = reading.token in self._tokenizer.eos_token_ids
        return self._step(
            index,
            reading,
            token=reading.token,
            logprob=reading.logprob,
            strategy=reading.decision.strategy,
            origin=Origin.SAMPLED,
            finish_reason="stop" if ends else None,
        )

    def inserted(self, index: int, pending: Pending, reading: Reading, token: int) -> Step:
        """Return the step of a token that was put where another was drawn."""
        return self._step(
            index,
            reading,
            token=token,
            logprob=logprob_of(pending, token),
            strategy=Strategy.THINK,
            origin=Origin.INSERTED,
            finish_reason=None,
        )

    def _step(
        self,
        index: int,
        reading: Reading,
        *,
        token: int,
        logprob: float,
        strategy: Strategy,
        origin: Origin,
        finish_reason: str | None,
    ) -> Step:
        if finish_reason is None and index + 1 == self._limit:
            finish_reason = "length"
        if finish_reason != "stop":
            self._detokenizer.add_token(token)
        if finish_reason is not None:
            self._detokenizer.finalize()
        decision = reading.decision
        return Step(
            index=index,
            token=token,
            text=self._detokenizer.last_segment,
            logprob=logprob,
            **decision.metrics._asdict(),
            confidence=self._confidence.of(decision.metrics),
            strategy=strategy,
            temperature=decision.temperature,
            top_p=decision.top_p,
            top_k=decision.top_k,
            min_p=decision.min_p,
            origin=origin,
            top_logprobs=tuple(
                Alternative(number, self._tokenizer.decode([number]), logprob)
                for number, logprob in reading.best
            ),
            finish_reason=finish_reason,
            time=time.perf_counter() - self._began,
        )


def _token_limit(model: Model, prompt_tokens: int, max_tokens: int) -> int:
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
