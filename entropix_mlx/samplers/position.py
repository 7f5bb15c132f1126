"""One position of several texts at once: measure, plan and draw, as few kernels.

`position` queues the computation; `Position.read` waits for it and fetches everything that the host
needs as one array.

Where the default device is a GPU the functions are compiled by `mx.compile`. Three rules keep it
from compiling again:

1. A sampler's numbers are inputs of the compiled function, not parts of it; see `Planner`.
2. The number of keys grows with every token, so what depends on it is compiled once for all shapes
   (``shapeless``), apart from the rest.
3. The rest is compiled once for each number of rows, vocabulary and `Kind`.

On the CPU nothing is compiled unless the environment variable ``ENTROPIX_COMPILE`` is 1: there MLX
needs a C++ compiler for it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import mlx.core as mx

from ..models.llama.attention import AttentionQueries, RowScores
from ..step import Decision, Metrics
from .base import (
    STRATEGIES,
    Plan,
    Planned,
    Sampler,
    as_planned,
)
from .draw import draw_columns, logprob, ranks_needed
from .logit_processors import adjust
from .memory import Beginning, State, Window, repeated
from .metrics.attention_runs import measure_looks
from .metrics.fused import columns_of
from .metrics.logits import (
    FUSED,
    LN_2,
    PLAIN,
    PLAIN_ATTENTION,
    AttentionKernels,
    Measured,
    Odds,
    Packing,
    compiled_attention,
    measure_attention,
    measure_logits,
    numbers,
)
from .planner import Planner

Alternatives = tuple[tuple[int, float], ...]
"""The most probable tokens and their natural log probabilities at temperature 1, best first."""

_METRICS = len(Metrics._fields)
_PLAN = len(Plan._fields)
_TOP_SURPRISE = _METRICS + _PLAN
_ALTERNATIVES = _TOP_SURPRISE + 3
"""First column of the alternatives: their tokens, then their log probabilities."""


_Arrays = tuple[mx.array, mx.array, mx.array, tuple[mx.array, ...], State]

KINDS = 32
"""Compiled functions that are kept; a process rarely needs more than two."""


class Kind(NamedTuple):
    """All that a compiled function depends on besides shapes."""

    rule: Callable[..., Plan | Planned]
    max_top_k: int | None
    needs_order: bool
    draws: int
    excludes_top: bool
    top_logprobs: int
    remembers: bool = False
    adjusts: bool = False
    takes_chance: bool = False
    given: bool = False


class Read(NamedTuple):
    """A position of one row in Python numbers."""

    decision: Decision
    token: int
    logprob: float
    """Natural log probability of the token at temperature 1."""
    alternatives: Alternatives


class Position(NamedTuple):
    """A queued position of several rows: arrays that may not have been computed yet."""

    packed: mx.array
    """`(rows, columns)` float32: the measurements, the plan, the top surprise, the drawn token and
    its log probability, then the alternatives' tokens and log probabilities. A float32 holds any
    token up to 2^24 exactly."""
    token: mx.array
    """`(rows,)`: the drawn tokens, for the next forward pass."""
    gaps: mx.array
    """`(rows, vocab)`"""
    changed: tuple[mx.array, ...] = ()
    """The gaps that were drawn from, where they are not those that were measured."""
    noted: State = ()
    """What the sampler remembers of the position."""

    @property
    def measured(self) -> Measured:
        """What was measured."""
        surprise = self.packed[:, _TOP_SURPRISE : _TOP_SURPRISE + 1]
        changed = Odds(self.changed[0], surprise) if self.changed else None
        return Measured(self.gaps, surprise, self.packed[:, :_METRICS], changed=changed)

    @property
    def logprob(self) -> mx.array:
        """The natural log probabilities of the drawn tokens at temperature 1: `(rows,)`."""
        return self.packed[:, _TOP_SURPRISE + 2]

    @property
    def plan(self) -> Plan:
        """What was planned."""
        return Plan(*(self.packed[:, _METRICS + field] for field in range(_PLAN)))

    def row(self, index: int) -> Position:
        """Return one row as a position of its own."""
        rows = slice(index, index + 1)
        changed = tuple(array[rows] for array in self.changed)
        return Position(self.packed[rows], self.token[rows], self.gaps[rows], changed)

    def read(self) -> list[Read]:
        """Wait for the position and return its rows in Python numbers.

        Nothing is checked: where the logits of a row were NaN or infinite, its entropy is NaN, and
        its strategy and token mean nothing.
        """
        return [_read(row) for row in numbers(self.packed)]


def _read(row: list[float]) -> Read:
    code, temperature, top_p, top_k, min_p = row[_METRICS:_TOP_SURPRISE]
    _, token, logprob, *best = row[_TOP_SURPRISE:]
    half = len(best) // 2
    return Read(
        Decision(
            STRATEGIES[_whole(code)],
            temperature,
            top_p,
            _whole(top_k),
            min_p,
            Metrics(*row[:_METRICS]),
        ),
        _whole(token),
        logprob,
        tuple(zip(map(_whole, best[:half]), best[half:], strict=True)),
    )


def _whole(number: float) -> int:
    return 0 if math.isnan(number) else int(number)


def position(
    sampler: Sampler,
    logits: mx.array,
    scores: Sequence[Sequence[RowScores]],
    randomness: mx.array,
    top_logprobs: int = 0,
    state: State = (),
    given: mx.array | None = None,
) -> Position:
    """Measure, plan and draw for several rows at once.

    Args:
        sampler: of all rows.
        logits: `(rows, vocab)`.
        scores: the attention scores of each group of rows, in the order of the rows: one array
            `(rows of the group, heads, keys)` for each measured layer, or its looks where the rows
            are tokens that follow one another. Groups may differ in their number of keys.
        randomness: `(rows or 1, draws, 2)`, from `uniforms`.
        top_logprobs: how many of the most probable tokens to report.
        state: what the sampler remembers of each row's text; () if that is empty.
        given: `(rows,)`, tokens to take in place of those that would be drawn.
    """
    rule, values = _rule(sampler)
    memory = sampler.remembered
    if memory is not None and not state:
        state = repeated(memory.start(Beginning(vocab=logits.shape[-1])), logits.shape[0])
    kind = Kind(
        rule,
        sampler.max_top_k,
        sampler.needs_order,
        sampler.draws,
        sampler.excludes_top,
        min(top_logprobs, logits.shape[-1]),
        sampler.memory is not None,
        bool(sampler.adjustment),
        sampler.takes_chance,
        given is not None,
    )
    if compiles():
        kernels, decide = compiled_attention(), _compiled(kind)
    else:
        kernels, decide = PLAIN_ATTENTION, partial(_decide, kind, PLAIN)
    measured = [_attention(group, kernels) for group in scores]
    attention = measured[0] if len(measured) == 1 else mx.concatenate(measured)
    tokens = () if given is None else (given,)
    return Position(
        *decide(logits, attention, randomness, (values, sampler.adjustment), state, tokens)
    )


def _attention(layers: Sequence[RowScores], kernels: AttentionKernels) -> mx.array:
    looks = [layer for layer in layers if isinstance(layer, AttentionQueries)]
    scores = [layer for layer in layers if not isinstance(layer, AttentionQueries)]
    return measure_looks(looks, kernels) if looks else measure_attention(scores, kernels)


def compiles() -> bool:
    """Tell whether positions are compiled: on a GPU, and where ``ENTROPIX_COMPILE`` is 1."""
    on_gpu = mx.default_device().type == mx.DeviceType.gpu
    return on_gpu or os.environ.get("ENTROPIX_COMPILE") == "1"


def _rule(sampler: Sampler) -> tuple[Callable[..., Plan | Planned], Any]:
    """Return the planning function of a sampler and its numbers, apart where it keeps them so."""
    plan = sampler.plan
    if isinstance(plan, Planner):
        return plan.rule, plan.numbers
    return _without_numbers(plan), ()


@lru_cache(maxsize=KINDS)
def _without_numbers(plan: Callable[..., Plan | Planned]) -> Callable[..., Plan | Planned]:
    """Return a plan as a rule, the same object whenever it is the same plan."""
    return lambda measured, _, *state: plan(measured, *state)


def _decide(
    kind: Kind,
    packing: Packing,
    logits: mx.array,
    attention: mx.array,
    randomness: mx.array,
    values: tuple[Any, Mapping[str, mx.array]],
    state: State,
    given: tuple[mx.array, ...],
) -> _Arrays:
    """Return the arrays of a `Position`; the function that is compiled."""
    # Where nothing is drawn, only a plan may need ranks, and none needs more than its top-k.
    needed = (kind.max_top_k or 0) if given else ranks_needed(kind, logits.shape[-1])
    measured = measure_logits(logits, attention, max(needed, kind.top_logprobs), packing)
    if kind.takes_chance:
        measured = measured._replace(chance=randomness[:, -1, 0])
    own = state[Window.arrays :] if kind.adjusts else state
    if kind.adjusts:
        adjusted = adjust(logits, values[1], state[: Window.arrays])
        measured = measured._replace(changed=Odds.of(adjusted, needed))
    plan, gaps, noted = as_planned(
        kind.rule(measured, values[0], own) if kind.remembers else kind.rule(measured, values[0])
    )
    if gaps is not None:
        measured = measured._replace(changed=Odds(gaps, measured.top_surprise))
    if noted is not None:
        state = state[: len(state) - len(own)] + noted
    if given:
        token = given[0][:, None]
        drawn = token, logprob(measured, token)
    else:
        drawn = draw_columns(measured, plan, kind, randomness)
        token = drawn[0]
    outcome = [*(field[:, None] for field in plan), measured.top_surprise, *drawn]
    packed = [packing.columns([*columns_of(measured.values), *outcome])]
    if kind.top_logprobs and measured.ranked:
        tokens, gaps = (array[:, : kind.top_logprobs] for array in measured.ranked)
        packed += [tokens.astype(mx.float32), (gaps + measured.top_surprise) * -LN_2]
    row = mx.concatenate(packed, axis=-1) if len(packed) > 1 else packed[0]
    changed = () if measured.changed is None else (measured.changed.gaps,)
    return row, token[:, 0], measured.gaps, changed, state


@lru_cache(maxsize=KINDS)
def _compiled(kind: Kind) -> Callable[..., _Arrays]:
    compiled: Callable[..., Any] = mx.compile(partial(_decide, kind, FUSED))
    return compiled
