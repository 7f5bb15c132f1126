"""One position at a time: run the model, measure, decide, draw.

`Engine.queue` starts a position and returns before it is computed; `Engine.read` waits for it.
Between the two the caller can queue the next position, which keeps the device busy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Generic, NamedTuple, TypeVar

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from ..errors import NonFiniteLogitsError
from ..models.cache import SharedPrefixCache, trim
from ..models.llama import AttentionLayers, Model
from ..policies.draw import Candidates, Draw, draw, draw_distinct, logprob, most_probable, uniforms
from ..policies.metrics import Measured, measure, numbers
from ..policies.policy import Plan, Policy
from ..step import Decision

PREFILL_CHUNK = 256
"""Tokens; between chunks a prefill can be cancelled."""
CLEAR_EVERY = 256
"""Positions between two releases of MLX's unused buffers."""


class Pending(NamedTuple):
    """A queued position of one or more sequences: arrays that may not have been computed yet."""

    measured: Measured
    plan: Plan
    drawn: Draw
    best: Candidates | None
    best_logprobs: mx.array | None

    def start(self) -> None:
        """Have everything that will be read computed, without waiting."""
        best = (*self.best, self.best_logprobs) if self.best else ()
        mx.async_eval(self.measured.metrics, self.plan, self.drawn, best)


class Reading(NamedTuple):
    """A position of one sequence in Python numbers."""

    decision: Decision
    token: int
    logprob: float
    best: tuple[tuple[int, float], ...]
    """The most probable tokens and their log probabilities, if asked for."""

    def without_thinking(self) -> Reading:
        """Return the reading with the strategy's name where no text may be inserted."""
        strategy = self.decision.strategy.sampled()
        return self._replace(decision=replace(self.decision, strategy=strategy))


Cache = TypeVar("Cache", KVCache, SharedPrefixCache)


class Engine(Generic[Cache]):
    """A model, its cache and a policy, at one place in a text, or at the same in several."""

    def __init__(
        self,
        model: Model,
        cache: Sequence[Cache],
        policy: Policy,
        seed: int,
        attention_layers: AttentionLayers = "last",
        top_logprobs: int = 0,
    ) -> None:
        """Set up; the cache says where in the text."""
        self._model = model
        self._cache: Sequence[Cache] = cache
        self._policy = policy
        self._seed = seed
        self._attention_layers: AttentionLayers = attention_layers
        self._top_logprobs = top_logprobs
        self._unstarted: Pending | None = None
        self._queued = 0

    @property
    def position(self) -> int:
        """Number of tokens in the cache."""
        return int(self._cache[0].offset)

    def queue(self, tokens: mx.array) -> Pending:
        """Start the position that follows a token of each sequence `(batch,)`; they join the cache.

        The forward pass starts now; what follows from it starts with the next call, or when it is
        read. On MLX's CPU backend, where starting work waits for most of the work before it, the
        graph of a forward pass is thereby built while the last one still runs.
        """
        self._queued += 1
        if self._queued % CLEAR_EVERY == 0:
            mx.clear_cache()
        forward = self._model(tokens[:, None], self._cache, self._attention_layers)
        self._start_last()
        mx.async_eval(forward)
        measured = measure(forward.logits[:, -1], forward.scores)
        plan = self._policy.plan(measured)
        randomness = mx.array([uniforms(self._seed, self.position, self._policy.draws)])
        drawn = draw(measured, plan, self._policy, randomness)
        best = most_probable(measured.gaps, self._top_logprobs) if self._top_logprobs else None
        best_logprobs = logprob(measured, best.tokens) if best else None
        self._unstarted = Pending(measured, plan, drawn, best, best_logprobs)
        return self._unstarted

    def _start_last(self) -> None:
        if self._unstarted is not None:
            self._unstarted.start()
            self._unstarted = None

    def read(self, pending: Pending) -> list[Reading]:
        """Wait for a position and return it in Python numbers: a token's one synchronisation.

        Raises:
            NonFiniteLogitsError: the model computed NaN or infinite logits.
        """
        if pending is self._unstarted:
            self._start_last()
        # The first number waits, the others are there. (mx.eval would wait for the next position.)
        decisions = pending.plan.decisions(pending.measured.metrics)
        if any(math.isnan(decision.metrics.entropy) for decision in decisions):
            raise NonFiniteLogitsError(
                "the model computed NaN or infinite logits: its weights are damaged, or its"
                " precision is too low; try another conversion of it"
            )
        best = _read_best(pending) or [()] * len(decisions)
        drawn = numbers(pending.drawn.token), numbers(pending.drawn.logprob)
        return [Reading(*row) for row in zip(decisions, *drawn, best, strict=True)]


class TextEngine(Engine[KVCache]):
    """An engine for one text, whose cache can be filled, shortened and forked."""

    def prefill(
        self,
        tokens: list[int],
        on_prefill: Callable[[int, int], None],
        cancelled: Callable[[], bool],
    ) -> None:
        """Put tokens into the cache, in chunks; stop early when cancelled.

        Args:
            tokens: ids.
            on_prefill: called with the tokens done and the number of all, before each chunk.
            cancelled: asked before each chunk.
        """
        for start in range(0, len(tokens), PREFILL_CHUNK):
            on_prefill(start, len(tokens) + 1)
            if cancelled():
                return
            # The logits are not asked for, so MLX does not compute them.
            self._model(mx.array([tokens[start : start + PREFILL_CHUNK]]), self._cache)
            mx.eval([(layer.keys, layer.values) for layer in self._cache])
            mx.clear_cache()

    def take_back(self) -> None:
        """Take the last token out of the cache again, and forget what was queued after it."""
        self.shorten(self.position - 1)

    def shorten(self, length: int) -> None:
        """Keep at most the first `length` tokens of the cache, and forget what was queued."""
        self._unstarted = None
        trim(self._cache, length)

    def first_tokens(self, pending: Pending, count: int) -> list[int]:
        """Return different tokens that may stand at a position, the most probable one first."""
        return draw_distinct(
            pending.measured, pending.plan, self._policy, count, self._seed, self.position
        )

    def fork(self, depth: int) -> BranchEngine:
        """Return an engine for several texts that begin with this one, without a copy of it.

        This text must not change before one of them is committed.

        Args:
            depth: tokens that each of them is expected to grow by.
        """
        return BranchEngine(
            self._model,
            [SharedPrefixCache(layer, depth) for layer in self._cache],
            self._policy,
            self._seed,
            self._attention_layers,
            self._top_logprobs,
        )


class BranchEngine(Engine[SharedPrefixCache]):
    """An engine for several texts that share their beginning; from `TextEngine.fork`."""

    def commit(self, branch: int, length: int) -> None:
        """Append the first `length` tokens that one text has added to the shared beginning."""
        if length == 0:  # and perhaps nothing was queued at all
            return
        for layer in self._cache:
            layer.commit(branch, length)


def _read_best(pending: Pending) -> list[tuple[tuple[int, float], ...]]:
    if pending.best is None or pending.best_logprobs is None:
        return []
    rows = zip(numbers(pending.best.tokens), numbers(pending.best_logprobs), strict=True)
    return [tuple(zip(tokens, logprobs, strict=True)) for tokens, logprobs in rows]


def with_tokens(pending: Pending, reading: Reading, tokens: list[int]) -> list[Reading]:
    """Return the reading of a position with each of some tokens in place of the drawn one."""
    logprobs = numbers(logprob(pending.measured, mx.array([tokens])))[0]
    return [
        reading._replace(token=token, logprob=value)
        for token, value in zip(tokens, logprobs, strict=True)
    ]
