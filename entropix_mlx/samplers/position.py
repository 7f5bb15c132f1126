"""One position of several rows: measured, planned and drawn, in as few kernels as possible.

`sample` queues the computation; `Sampled.read` waits for it and fetches everything that the host
needs as one array::

    logits, scores
      │ measure        metrics and gaps of the model's own prediction          metrics
      ▼
    Measured           changed by penalties and a constraint, for the draw alone
      │ plan           strategy, temperature, top-p, top-k, min-p              the sampler
      ▼
    Plan               and perhaps another distribution to draw from
      │ draw           one token                                               draw
      ▼
    Sampled            all numbers packed into one array a row

On a GPU the functions are compiled by `mx.compile`. Three rules keep it from tracing them again
while a text grows, or when a user moves a threshold:

1. A sampler's numbers are inputs of the compiled function, not parts of it.
2. What depends on the number of keys (the attention metrics) is compiled once for all shapes.
3. The rest, `_decide`, is compiled once for each number of rows, each vocabulary and each set of
   arguments of `_compiled`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import mlx.core as mx

from ..models.device import compiles
from ..step import Metrics
from .base import PARAMETERS, STRATEGIES, Drawing, Plan, Rule, Sampler
from .draw import draw, draw_distinct, ranks_needed
from .metrics import (
    FORBIDDEN_GAP,
    LN_2,
    Measured,
    measure,
    most_probable,
    numbers,
    to_gaps,
)
from .row import Listed, Row

_METRICS = len(Metrics._fields)
_DRAWN = _METRICS + PARAMETERS

LISTED = 4  # allowed tokens that are listed under a constraint
NOT_ALLOWED = -1e12  # nats: a listed token of a log probability below was not allowed
WORD = 32  # tokens in a word of a mask
MOST_COMPILED = 32  # compiled functions in the cache; a process rarely needs more than two
_FIRST = mx.array([[True, False]])


class Sampled(NamedTuple):
    """A queued position of several rows: arrays that may not have been computed yet."""

    packed: mx.array
    """`(rows, columns)` float32: the metrics, the plan, the drawn token and its log probability,
    the top surprise; under a constraint the strain, and the allowed tokens with their log
    probabilities; then those of the alternatives. A float32 holds tokens up to 2^24 exactly."""
    token: mx.array  # `(rows,)`: the drawn tokens, for the next forward pass
    gaps: mx.array  # `(rows, vocab)`
    drawn_from: mx.array  # `(rows, vocab)`: the gaps that were drawn from
    drawing: Drawing
    allowed: int = 0  # tokens that are listed of those that a constraint allows; 0 without one
    places: Sequence[tuple[int, int]] = ()  # seed and position of each row

    def plan(self, row: int) -> Plan:
        """Return the plan of one row, `(1,)` each."""
        fields = range(_METRICS, _DRAWN)
        return Plan(*(self.packed[row : row + 1, field] for field in fields))

    def read(self) -> list[Row]:
        """Wait for the position and return its rows in Python numbers.

        Where the logits of a row were NaN or infinite, its entropy is NaN, and the rest is invalid.
        """
        rows = (_read(row, self.allowed) for row in numbers(self.packed))
        return [row._replace(distribution=self, number=n) for n, row in enumerate(rows)]

    def logprobs(self, row: int, tokens: Sequence[int]) -> list[float]:
        """Return the natural log probabilities of some tokens in a row, at temperature 1."""
        gaps = self.gaps[row, mx.array(list(tokens))]
        found: list[float] = numbers((gaps + self.packed[row, _DRAWN + 2]) * -LN_2)
        return found

    def openings(self, row: int, count: int) -> list[int]:
        """Return different tokens that may stand in a row, the most probable one first."""
        gaps = self.drawn_from[row : row + 1]
        return draw_distinct(gaps, self.plan(row), self.drawing, count, *self.places[row])


def _read(row: list[float], allowed: int) -> Row:
    code, temperature, top_p, top_k, min_p = row[_METRICS:_DRAWN]
    token, logprob, _, *others = row[_DRAWN:]
    found = Row(
        token=_whole(token),
        logprob=logprob,
        metrics=Metrics(*row[:_METRICS]),
        strategy=STRATEGIES[_whole(code)],
        temperature=temperature,
        top_p=top_p,
        top_k=_whole(top_k),
        min_p=min_p,
    )
    if allowed:
        strain, *others = others
        listed, others = _pairs(others[: 2 * allowed]), others[2 * allowed :]
        listed = tuple((token, p) for token, p in listed if p > NOT_ALLOWED)
        found = found._replace(strain=max(strain, 0.0), allowed=listed)
    return found._replace(alternatives=_pairs(others))


def _pairs(columns: list[float]) -> Listed:
    half = len(columns) // 2
    return tuple(zip(map(_whole, columns[:half]), columns[half:], strict=True))


def _whole(number: float) -> int:
    return 0 if math.isnan(number) else int(number)


def sample(
    sampler: Sampler,
    logits: mx.array,
    attention: mx.array | None,
    randomness: mx.array,
    top_logprobs: int = 0,
    *,
    places: Sequence[tuple[int, int]] = (),
    given: mx.array | None = None,
    mask: mx.array | None = None,
    changed: mx.array | None = None,
) -> Sampled:
    """Measure, plan and draw for several rows at once.

    Args:
        sampler: of all rows.
        logits: `(rows, vocab)`.
        attention: its metrics `(rows, 5)`, from `measure_attention`; None where not measured.
        randomness: `(rows or 1, draws, 2)`, from `uniforms`.
        top_logprobs: how many of the most probable tokens to report.
        places: the seed and the position of each row, for `Sampled.openings`.
        given: `(rows,)`, tokens to take in place of those that would be drawn.
        mask: `(rows, words)` uint32, the bits of the tokens that a constraint allows.
        changed: `(rows, vocab)`, the logits to draw from, if not `logits`.
    """
    arrays = {"given": given, "mask": mask, "changed": changed}
    extras = {name: array for name, array in arrays.items() if array is not None}
    vocab = logits.shape[-1]
    attention = mx.zeros((logits.shape[0], 5)) if attention is None else attention
    key = sampler.rule, sampler.drawing, min(top_logprobs, vocab)
    decide = _compiled(*key, tuple(extras)) if compiles() else partial(_decide, *key)
    found = decide(logits, attention, randomness, sampler.numbers, extras)
    listed = 0 if mask is None else min(LISTED, vocab)
    packed, token, gaps, drawn_from = found
    return Sampled(packed, token, gaps, drawn_from, sampler.drawing, listed, places)


def _decide(
    rule: Rule,
    drawing: Drawing,
    top_logprobs: int,
    logits: mx.array,
    attention: mx.array,
    randomness: mx.array,
    values: Any,
    extras: Mapping[str, mx.array],
) -> tuple[mx.array, ...]:
    """Return the first arrays of a `Sampled`; the function that is compiled."""
    needed = 0 if "given" in extras else ranks_needed(drawing, logits.shape[-1])
    measured = measure(logits, attention, max(needed, top_logprobs))
    if drawing.takes_chance:
        measured = measured._replace(chance=randomness[:, -1, 1])
    changed, allowed = extras.get("changed"), None
    if changed is not None:
        measured = measured._replace(drawn_from=to_gaps(changed))
    if "mask" in extras:
        allowed = _bits(extras["mask"], logits.shape[-1])
        gaps = _constrained(logits if changed is None else changed, allowed)
        measured = measured._replace(drawn_from=gaps)
    plan = rule(measured, values)
    if plan.drawn_from is not None:
        gaps = plan.drawn_from
        if allowed is not None:
            gaps = mx.where(allowed, gaps, FORBIDDEN_GAP)
            gaps = gaps - gaps.min(axis=-1, keepdims=True)
        measured = measured._replace(drawn_from=gaps)
    if "given" in extras:
        token = extras["given"][:, None]
        logprob = measured.logprob(token)
    else:
        token, logprob = draw(measured, plan, drawing, randomness)
    both = mx.where(_FIRST, token, logprob)
    packed = [measured.values, *(field[:, None] for field in plan.parameters), both]
    packed.append(measured.top_surprise)
    if allowed is not None:
        packed += _of_allowed(measured, allowed)
    if top_logprobs and measured.ranked:
        tokens, gaps = (array[:, :top_logprobs] for array in measured.ranked)
        packed += [tokens, (gaps + measured.top_surprise) * -LN_2]
    row = mx.concatenate([column.astype(mx.float32) for column in packed], axis=-1)
    return row, token[:, 0], measured.gaps, measured.drawn_from


def _bits(mask: mx.array, vocab: int) -> mx.array:
    """Return the bits `(rows, vocab)` of `(rows, words)`, as truth values."""
    bits = (mask[:, :, None] >> mx.arange(WORD, dtype=mx.uint32)) & 1
    return bits.reshape(mask.shape[0], -1)[:, :vocab] > 0


def _constrained(logits: mx.array, allowed: mx.array) -> mx.array:
    """Return the gaps among allowed tokens; no temperature can give another one a chance."""
    gaps = to_gaps(mx.where(allowed, logits.astype(mx.float32), -math.inf))
    return mx.where(allowed, gaps, FORBIDDEN_GAP)


def _of_allowed(measured: Measured, allowed: mx.array) -> list[mx.array]:
    """Return the columns of a constraint: the strain, the most probable allowed tokens and their
    log probabilities given that one of these is taken; all of the model's own distribution."""
    own = measured.gaps
    highest = mx.where(allowed, own, FORBIDDEN_GAP).min(axis=-1, keepdims=True)
    gaps = mx.where(allowed, own - highest, FORBIDDEN_GAP)
    total = mx.log2(mx.power(0.5, gaps).sum(axis=-1, keepdims=True))
    tokens, best = most_probable(gaps, min(LISTED, gaps.shape[-1]))
    strain = measured.top_surprise + highest - total
    return [strain, tokens, (best + total) * -LN_2]


@lru_cache(maxsize=MOST_COMPILED)
def _compiled(
    rule: Rule, drawing: Drawing, top_logprobs: int, extras: tuple[str, ...]
) -> Callable[..., tuple[mx.array, ...]]:
    return mx.compile(partial(_decide, rule, drawing, top_logprobs))
