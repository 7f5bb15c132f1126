"""One position of several texts at once: measure, plan and draw, in as few kernels as possible.

`sample` queues the computation; `Sampled.read` waits for it and fetches everything that the host
needs as one array::

    logits, scores
      │ measure        metrics and gaps of the model's own prediction          metrics/
      ▼
    Measured           changed by biases and penalties, for the draw alone     logit_processors
      │ plan           strategy, temperature, top-p, top-k, min-p              the sampler
      ▼
    Plan               and perhaps another distribution to draw from
      │ draw           one token                                               draw
      ▼
    Sampled            all numbers packed into one array a row

Where `models/device.py` says so, which is on a GPU, the functions are compiled by `mx.compile`.
Three rules keep it from tracing them again while a text grows, or when a user moves a threshold:

1. A sampler's numbers are inputs of the compiled function, not parts of it.
2. The number of keys grows with every token, so what depends on it (the attention metrics) is
   compiled once for all shapes (``shapeless``), apart from the rest.
3. The rest, `_decide`, is compiled once for each number of rows, vocabulary and `CompileKey`, which
   holds whatever changes which operations there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import mlx.core as mx

from ..models.device import compiles
from ..models.llama.attention import RowScores
from ..step import Decision, Metrics
from .base import (
    STRATEGIES,
    Drawing,
    Plan,
    Rule,
    Sampler,
    State,
    TextStart,
    Window,
    as_planned,
    repeated,
)
from .draw import draw, logprob, ranks_needed
from .logit_processors import adjust
from .metrics.attention import PLAIN_ATTENTION, compiled_attention, measure_attention
from .metrics.fused import columns_of
from .metrics.logits import (
    FORBIDDEN_GAP,
    FUSED,
    LN_2,
    PLAIN,
    LogitKernels,
    Measured,
    Odds,
    measure_logits,
    most_probable,
    numbers,
    self_certainty,
)

Alternatives = tuple[tuple[int, float], ...]  # tokens and log probabilities, best first

_METRICS = len(Metrics._fields)
_PLAN = len(Plan._fields)
_TOP_SURPRISE = _METRICS + _PLAN
_GAP_SUM = _TOP_SURPRISE + 3

_Arrays = tuple[mx.array, mx.array, mx.array, tuple[mx.array, ...], State]

LISTED = 4
"""Allowed tokens that are listed under a constraint: the value that was taken, and others."""
NOT_ALLOWED = -1e12  # nats: a listed token of a log probability below was not allowed
WORD = 32  # tokens in a word of a mask

MOST_COMPILED = 32  # compiled functions in the cache; a process rarely needs more than two


class CompileKey(NamedTuple):
    """All that a compiled function depends on besides shapes."""

    rule: Rule
    drawing: Drawing
    top_logprobs: int
    remembers: bool
    adjusts: bool
    given: bool
    constrained: bool


class DrawnToken(NamedTuple):
    """A position of one row in Python numbers."""

    decision: Decision
    token: int
    logprob: float  # natural log probability of the token at temperature 1
    alternatives: Alternatives
    strain: float | None = None
    allowed: Alternatives = ()
    self_certainty: float | None = None


class Sampled(NamedTuple):
    """A queued position of several rows: arrays that may not have been computed yet."""

    packed: mx.array
    """`(rows, columns)` float32: the metrics, the plan, the top surprise, the drawn token and its
    log probability, the sum of the gaps; under a constraint the strain, and the allowed tokens with
    their log probabilities; then those of the alternatives. A float32 holds any token up to 2^24
    exactly."""
    token: mx.array  # `(rows,)`: the drawn tokens, for the next forward pass
    gaps: mx.array  # `(rows, vocab)`
    changed: tuple[mx.array, ...] = ()  # the gaps that were drawn from, if not those
    state: State = ()  # the sampler's, with the position observed; see `Memory.observe`
    allowed: int = 0  # tokens that are listed of those that a constraint allows; 0 without one

    @property
    def measured(self) -> Measured:
        surprise = self.packed[:, _TOP_SURPRISE : _TOP_SURPRISE + 1]
        changed = Odds(self.changed[0], surprise) if self.changed else None
        gap_sum = self.packed[:, _GAP_SUM : _GAP_SUM + 1]
        return Measured(self.gaps, surprise, self.packed[:, :_METRICS], gap_sum, changed=changed)

    @property
    def logprob(self) -> mx.array:
        return self.packed[:, _TOP_SURPRISE + 2]

    @property
    def plan(self) -> Plan:
        return Plan(*(self.packed[:, _METRICS + field] for field in range(_PLAN)))

    def row(self, index: int) -> Sampled:
        rows = slice(index, index + 1)
        changed = tuple(array[rows] for array in self.changed)
        return Sampled(self.packed[rows], self.token[rows], self.gaps[rows], changed)

    def read(self) -> list[DrawnToken]:
        """Wait for the position and return its rows in Python numbers.

        Where the logits of a row were NaN or infinite, its entropy is NaN, and the rest is invalid.
        """
        vocab = self.gaps.shape[-1]
        return [_read(row, self.allowed, vocab) for row in numbers(self.packed)]


def _read(row: list[float], allowed: int, vocab: int) -> DrawnToken:
    code, temperature, top_p, top_k, min_p = row[_METRICS:_TOP_SURPRISE]
    surprise, token, logprob, gap_sum, *others = row[_TOP_SURPRISE:]
    strategy, metrics = STRATEGIES[_whole(code)], Metrics(*row[:_METRICS])
    decision = Decision(strategy, temperature, top_p, _whole(top_k), min_p, metrics)
    certainty = self_certainty(gap_sum, surprise, vocab)
    drawn = DrawnToken(decision, _whole(token), logprob, (), self_certainty=certainty)
    if allowed:
        strain, *others = others
        listed, others = _pairs(others[: 2 * allowed]), others[2 * allowed :]
        listed = tuple((token, p) for token, p in listed if p > NOT_ALLOWED)
        drawn = drawn._replace(strain=max(strain, 0.0), allowed=listed)
    return drawn._replace(alternatives=_pairs(others))


def _pairs(columns: list[float]) -> Alternatives:
    half = len(columns) // 2
    return tuple(zip(map(_whole, columns[:half]), columns[half:], strict=True))


def _whole(number: float) -> int:
    return 0 if math.isnan(number) else int(number)


def sample(
    sampler: Sampler,
    logits: mx.array,
    scores: Sequence[Sequence[RowScores]],
    randomness: mx.array,
    top_logprobs: int = 0,
    state: State = (),
    given: mx.array | None = None,
    mask: mx.array | None = None,
) -> Sampled:
    """Measure, plan and draw for several rows at once.

    Args:
        sampler: of all rows.
        logits: `(rows, vocab)`.
        scores: of each group of rows, in the order of the rows, the attention scores in each
            measured layer. Groups may differ in their number of keys.
        randomness: `(rows or 1, draws, 2)`, from `uniforms`.
        top_logprobs: how many of the most probable tokens to report.
        state: the sampler's, of each row's text; () before the first token.
        given: `(rows,)`, tokens to take in place of those that would be drawn.
        mask: `(rows, words)` uint32, the bits of the tokens that a constraint allows.
    """
    memory = sampler.remembered
    if memory is not None and not state:
        state = repeated(memory.start(TextStart(vocab=logits.shape[-1])), logits.shape[0])
    key = CompileKey(
        sampler.rule,
        sampler.drawing,
        min(top_logprobs, logits.shape[-1]),
        sampler.memory is not None,
        bool(sampler.adjustment),
        given is not None,
        mask is not None,
    )
    if compiles():
        kernels, decide = compiled_attention(), _compiled(key)
    else:
        kernels, decide = PLAIN_ATTENTION, partial(_decide, key, PLAIN)
    measured = [measure_attention(group, kernels) for group in scores]
    attention = measured[0] if len(measured) == 1 else mx.concatenate(measured)
    tokens = () if given is None else (given,)
    values = (sampler.numbers, sampler.adjustment)
    masks = () if mask is None else (mask,)
    arrays = decide(logits, attention, randomness, values, state, tokens, masks)
    return Sampled(*arrays, allowed=min(LISTED, logits.shape[-1]) if masks else 0)


def _decide(
    key: CompileKey,
    kernels: LogitKernels,
    logits: mx.array,
    attention: mx.array,
    randomness: mx.array,
    values: tuple[Any, Mapping[str, mx.array]],
    state: State,
    given: tuple[mx.array, ...],
    masks: tuple[mx.array, ...],
) -> _Arrays:
    """Return the arrays of a `Sampled`; the function that is compiled."""
    needed = ranks_needed(key.drawing, logits.shape[-1])
    if given:  # nothing is drawn: only a plan may need ranks, and none needs more than its top-k
        needed = key.drawing.max_top_k or 0
    measured = measure_logits(logits, attention, max(needed, key.top_logprobs), kernels)
    if key.drawing.takes_chance:
        measured = measured._replace(chance=randomness[:, -1, 0])
    # A state is the window of the adjustment, if there is one, then the arrays of the plan.
    own = state[Window.arrays :] if key.adjusts else state
    if key.adjusts:
        logits = adjust(logits, values[1], state[: Window.arrays])
        measured = measured._replace(changed=Odds.of(logits, needed))
    allowed = _bits(masks[0], logits.shape[-1]) if masks else None
    if allowed is not None:
        measured = measured._replace(changed=_constrained(logits, allowed, needed))
    remembered = (own,) if key.remembers else ()
    plan, gaps, observed = as_planned(key.rule(measured, values[0], *remembered))
    if gaps is not None:
        if allowed is not None:
            gaps = mx.where(allowed, gaps, FORBIDDEN_GAP)
            gaps = gaps - gaps.min(axis=-1, keepdims=True)
        measured = measured._replace(changed=Odds(gaps, measured.top_surprise))
    if observed is not None:
        state = state[: len(state) - len(own)] + observed
    if given:
        token = given[0][:, None]
        drawn = token, logprob(measured, token)
    else:
        drawn = draw(measured, plan, key.drawing, randomness)
        token = drawn[0]
    outcome = [*(field[:, None] for field in plan), measured.top_surprise, *drawn]
    outcome.append(measured.gap_sum)
    packed = [kernels.columns([*columns_of(measured.values), *outcome])]
    if allowed is not None:
        packed += _of_allowed(measured, allowed)
    if key.top_logprobs and measured.ranked:
        tokens, gaps = (array[:, : key.top_logprobs] for array in measured.ranked)
        packed += [tokens.astype(mx.float32), (gaps + measured.top_surprise) * -LN_2]
    row = mx.concatenate(packed, axis=-1) if len(packed) > 1 else packed[0]
    changed = () if measured.changed is None else (measured.changed.gaps,)
    return row, token[:, 0], measured.gaps, changed, state


def _bits(mask: mx.array, vocab: int) -> mx.array:
    """Return the bits `(rows, vocab)` of `(rows, words)`, as truth values."""
    bits = (mask[:, :, None] >> mx.arange(WORD, dtype=mx.uint32)) & 1
    return bits.reshape(mask.shape[0], -1)[:, :vocab] > 0


def _constrained(logits: mx.array, allowed: mx.array, ranks: int) -> Odds:
    """Return the odds among allowed tokens; no temperature can give another one a chance."""
    odds = Odds.of(mx.where(allowed, logits.astype(mx.float32), -math.inf))
    gaps = mx.where(allowed, odds.gaps, FORBIDDEN_GAP)
    return Odds(gaps, odds.top_surprise, most_probable(gaps, ranks) if ranks else None)


def _of_allowed(measured: Measured, allowed: mx.array) -> list[mx.array]:
    """Return the columns of a constraint: the strain, the most probable allowed tokens and their
    log probabilities given that one of these is taken; all of the model's own distribution."""
    highest = mx.where(allowed, measured.gaps, FORBIDDEN_GAP).min(axis=-1, keepdims=True)
    gaps = mx.where(allowed, measured.gaps - highest, FORBIDDEN_GAP)
    total = mx.log2(mx.power(0.5, gaps).sum(axis=-1, keepdims=True))
    best = most_probable(gaps, min(LISTED, gaps.shape[-1]))
    strain = measured.top_surprise + highest - total
    return [strain, best.tokens.astype(mx.float32), (best.gaps + total) * -LN_2]


@lru_cache(maxsize=MOST_COMPILED)
def _compiled(key: CompileKey) -> Callable[..., _Arrays]:
    compiled: Callable[..., Any] = mx.compile(partial(_decide, key, FUSED))
    return compiled
