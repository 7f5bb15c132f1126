"""One position at a time: run the model, measure, decide, draw.

`Engine.queue` starts a position and returns before it is computed; `Engine.read` waits for it.
Between the two the caller can queue the next position, which keeps the device busy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import mlx.core as mx
from mlx_lm.models.cache import KVCache, trim_prompt_cache

from .errors import NonFiniteLogitsError
from .llama import AttentionLayers, Model
from .metrics import Measured, measure, number
from .plan import Plan, Policy
from .policy import to_decision
from .sampling import Candidates, Draw, draw, logprob, most_probable, uniforms
from .step import Decision

PREFILL_CHUNK = 256
"""Tokens; between chunks a prefill can be cancelled."""


class Pending(NamedTuple):
    """A position that has been queued: arrays that may not have been computed yet."""

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
    """A position in Python numbers."""

    decision: Decision
    token: int
    logprob: float
    best: tuple[tuple[int, float], ...]
    """The most probable tokens and their log probabilities, if asked for."""


class Engine:
    """A model, its cache and a policy, at one place in a text."""

    def __init__(
        self,
        model: Model,
        cache: list[KVCache],
        policy: Policy,
        seed: int,
        attention_layers: AttentionLayers = "last",
        top_logprobs: int = 0,
    ) -> None:
        """Set up; the cache says where in the text."""
        self._model = model
        self._cache = cache
        self._policy = policy
        self._seed = seed
        self._attention_layers: AttentionLayers = attention_layers
        self._top_logprobs = top_logprobs
        self._unstarted: Pending | None = None

    @property
    def position(self) -> int:
        """Number of tokens in the cache."""
        return int(self._cache[0].offset)

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

    def queue(self, token: mx.array, may_think: bool) -> Pending:
        """Start the position that follows a token `(1,)`, which joins the cache.

        The forward pass starts now; what follows from it starts with the next call, or when it is
        read. On MLX's CPU backend, where starting work waits for most of the work before it, the
        graph of a forward pass is thereby built while the last one still runs.
        """
        forward = self._model(token[:, None], self._cache, self._attention_layers)
        self._start_last()
        mx.async_eval(forward)
        measured = measure(forward.logits[:, -1], forward.scores)
        plan = self._policy.plan(measured, may_think)
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

    def read(self, pending: Pending) -> Reading:
        """Wait for a position and return it in Python numbers: a token's one synchronisation.

        Raises:
            NonFiniteLogitsError: the model computed NaN or infinite logits.
        """
        if pending is self._unstarted:
            self._start_last()
        # The first number waits, the others are there. (mx.eval would wait for the next position.)
        decision = to_decision(pending.plan, pending.measured.metrics)
        if math.isnan(decision.metrics.entropy):
            raise NonFiniteLogitsError(
                "the model computed NaN or infinite logits: its weights are damaged, or its"
                " precision is too low; try another conversion of it"
            )
        best: tuple[tuple[int, float], ...] = ()
        if pending.best is not None and pending.best_logprobs is not None:
            tokens: Any = pending.best.tokens.tolist()
            logprobs: Any = pending.best_logprobs.tolist()
            best = tuple(zip(tokens[0], logprobs[0], strict=True))
        return Reading(decision, number(pending.drawn.token), number(pending.drawn.logprob), best)

    def roll_back(self) -> None:
        """Take the last token out of the cache again, and forget what was queued after it."""
        self._unstarted = None
        trim_prompt_cache(self._cache, 1)


def logprob_of(pending: Pending, token: int) -> float:
    """Return the log probability of any token at a position."""
    return float(number(logprob(pending.measured, mx.array([[token]]))))
