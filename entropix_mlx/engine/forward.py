"""One forward pass over many texts: run the model, measure, decide, draw.

`Engine.queue` starts a pass and returns before it is computed; `Pass.read` waits for it. Between
the two the caller can queue the next pass, which keeps the device busy:

    host     queue 1 ── queue 2 ── read 1 ── queue 3 ── read 2 ──
    device            [ pass 1 ][ pass 2 ]  [ pass 3 ]

A pass goes through five steps, of which only the last waits:

1. Every slot brings rows: its text, its branches, or a block of tokens that follow one another. The
   model computes all rows at once, since reading the weights is what costs; attention runs over
   each slot's own cache.
2. Rows that share a sampler form a part (`PassPart`). A part is measured as one batch.
3. The sampler plans, and a token is drawn for each row with the randomness of its slot's seed and
   of its place in the text. A block of many tokens is planned in pieces, since the logits of all
   its positions would fill the memory.
4. Whoever queues the next pass uses the drawn tokens as arrays (`Pass.drawn`): they need not be
   known.
5. `Pass.read` fetches everything that was packed for the host in one array a part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import mlx.core as mx

from ..answer.position import Likelihood, Position
from ..models.base import AttentionLayers, Forward, LanguageModel, Rows
from ..models.llama.attention import AttentionQueries, Masked, RowScores
from ..models.llama.cache import TextCache
from ..models.memory import CLEAR_EVERY
from ..samplers.base import Sampler, State, joined, rows_of
from ..samplers.draw import draw_distinct, logprob, uniforms
from ..samplers.metrics.logits import most_probable, numbers
from ..samplers.position import Sampled, sample
from ..settings import ResolvedSettings
from .cached_text import CachedText

BLOCK_AT_ONCE = 4
"""Tokens of a block that are measured and planned together: several arrays of the size of their
logits are in memory then."""
LOGITS_AT_ONCE = 2**22
"""Logits of a given text that are compared at once."""


class SlotRows(NamedTuple):
    """Rows of one slot that take a token each: its text, branches of one length, or a block."""

    layers: Sequence[TextCache]
    tokens: mx.array
    """`(rows,)`"""
    resolved: ResolvedSettings
    state: State = ()
    """The sampler's state after each row's text, the token included; () for nothing yet. Of a
    block, that is the text with its first token."""
    block: bool = False
    """Whether the tokens follow one another in one text."""
    mask: mx.array | None = None
    """`(rows, words)`, what a constraint allows after each token; None without one."""

    @property
    def rows(self) -> Rows:
        return Rows(self.layers, self.tokens, self.block)

    @property
    def places(self) -> Sequence[int]:
        """Where in its text each position is that follows a token, once the tokens are cached."""
        joined_before = (self.tokens.size - 1) * self.block
        return self.rows.offsets(int(self.layers[0].offset) - joined_before)


def kind_of(resolved: ResolvedSettings) -> tuple[int, int]:
    """Return what slots have in common that are measured and drawn together."""
    return id(resolved.sampler), resolved.settings.top_logprobs


class Engine:
    """A model, and the passes that run on it."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self._unstarted: Pass | None = None
        self._queued = 0

    def queue(self, groups: Sequence[SlotRows]) -> Pass:
        """Start the positions that follow a token of each row; the tokens join the caches.

        The forward pass starts now; what follows from it starts with the next call, or when it is
        read. On MLX's CPU backend, where starting work waits for most of the work before it, the
        graph of a forward pass is thereby built while the last one still runs.
        """
        self._queued += 1
        if self._queued % CLEAR_EVERY == 0:
            mx.clear_cache()
        forward = self._model.step([group.rows for group in groups], _layers_of(groups))
        self.start_last()
        mx.async_eval(forward)
        self._unstarted = Pass(self, forward, groups)
        return self._unstarted

    def start_last(self) -> None:
        """Have what follows from the last forward pass computed, without waiting."""
        if self._unstarted is not None:
            mx.async_eval(self._unstarted.arrays())
            self._unstarted = None

    def prefill(self, text: CachedText, tokens: Sequence[int]) -> None:
        """Put tokens into a text's cache and wait until they are there."""
        try:
            # The logits are not asked for, so MLX does not compute them.
            self._model.prefill(mx.array([list(tokens)]), text.layers)
            mx.eval(text.arrays())
        except BaseException:  # Ctrl-C: some layers may hold the tokens, and others not
            text.take_back()
            raise
        text.confirm(tokens)
        mx.clear_cache()

    def score(
        self, text: CachedText, tokens: Sequence[int], following: Sequence[int], best: int = 0
    ) -> list[Likelihood]:
        """Put tokens into a text's cache, and return how well the one after each is predicted.

        After an error the text holds none of them. `best` most probable tokens are listed.
        """
        found: list[Likelihood] = []
        size = max(1, LOGITS_AT_ONCE // self._model.config.vocab_size)
        try:
            states, _ = self._model.states(mx.array([list(tokens)]), text.layers, "last")
            for begin in range(0, len(tokens), size):
                inside = slice(begin, begin + size)
                logits = self._model.head(states[:, inside])[0].astype(mx.float32)
                found += _likelihoods(logits, mx.array(list(following[inside])), best)
        except BaseException:
            text.take_back()
            raise
        text.confirm(tokens)
        return found


class PassPart(NamedTuple):
    """Rows of a pass that share a sampler: arrays that may not have been computed yet."""

    sampler: Sampler
    sampled: Sampled


class Pass:
    """A forward pass in flight: one position of each row."""

    def __init__(self, engine: Engine, forward: Forward, groups: Sequence[SlotRows]) -> None:
        self._engine = engine
        self._attended = forward.attended
        self._places = [(group.resolved.seed, at) for group in groups for at in group.places]
        self._parts = list(_parts(forward, groups, self._places))
        self._rows = [
            (part, row) for part in self._parts for row in range(part.sampled.token.shape[0])
        ]
        self._positions: list[Position] | None = None

    def arrays(self) -> list[mx.array]:
        sampled = [part.sampled for part in self._parts]
        return [array for one in sampled for array in (one.packed, one.token, *one.state)]

    def drawn(self, rows: Sequence[int]) -> mx.array:
        """Return the tokens that were drawn in some rows of one slot: `(rows,)`."""
        part, inside = self._inside(rows)
        return rows_of((part.sampled.token,), inside)[0]

    def logprobs(self, rows: Sequence[int], tokens: mx.array | None = None) -> mx.array:
        """Return the log probabilities `(rows,)` of the drawn tokens, or of others `(rows,)`."""
        part, inside = self._inside(rows)
        if tokens is None:
            return rows_of((part.sampled.logprob,), inside)[0]
        chosen = [part.sampled.row(row).measured for row in inside]
        columns = [logprob(one, tokens[n, None, None]) for n, one in enumerate(chosen)]
        return mx.concatenate(columns)[:, 0]

    def states(self, rows: Sequence[int]) -> State:
        part, inside = self._inside(rows)
        return rows_of(part.sampled.state, inside)

    def read(self) -> list[Position]:
        """Wait for the pass and return every row in Python numbers: its one synchronisation."""
        if self._positions is not None:
            return self._positions
        # 1. The pass behind this one starts first, so that the device has work meanwhile.
        self._engine.start_last()
        # 2. Only what is fetched is waited for: mx.eval would wait for the next pass, too.
        rows = [row for part in self._parts for row in part.sampled.read()]
        # 3. The whole distributions stay on the device, for what may be asked of them later.
        found = [
            Position(*row, distribution=_RowDistribution(*of_row, *place))
            for row, of_row, place in zip(rows, self._rows, self._places, strict=True)
        ]
        if not self._attended:
            found = [position.without_attention() for position in found]
        self._positions = found
        return found

    def position(self, row: int) -> Position:
        """Return the position of one row, which must have been read.

        Raises:
            NonFiniteLogitsError: the model computed NaN or infinite logits there.
        """
        return self.read()[row].checked()

    def _inside(self, rows: Sequence[int]) -> tuple[PassPart, list[int]]:
        return self._rows[rows[0]][0], [self._rows[row][1] for row in rows]


class _RowDistribution(NamedTuple):
    """The `Distribution` of one row of a pass."""

    part: PassPart
    row: int
    seed: int
    place: int

    def logprobs(self, tokens: Sequence[int]) -> list[float]:
        measured = self.part.sampled.row(self.row).measured
        found: list[float] = numbers(logprob(measured, mx.array([list(tokens)])))[0]
        return found

    def openings(self, count: int) -> list[int]:
        one = self.part.sampled.row(self.row)
        drawing = self.part.sampler.drawing
        return draw_distinct(one.measured, one.plan, drawing, count, self.seed, self.place)


def _parts(
    forward: Forward, groups: Sequence[SlotRows], places: Sequence[tuple[int, int]]
) -> Iterator[PassPart]:
    """Yield the parts of a pass; groups that share a sampler must follow one another."""
    # A single block is one text with several tokens, (1, rows, vocab); otherwise each row is a text
    # with one token, (rows, 1, vocab).
    logits = forward.logits.reshape(-1, forward.logits.shape[-1])
    scores = _scores_by_group(forward, groups)
    row = number = 0
    for (_, best, apart, _), members in groupby(groups, key=_part_kind):
        of_part = list(members)
        size = sum(group.tokens.size for group in of_part)
        rows = slice(row, row + size)
        sampler = of_part[0].resolved.sampler
        randomness = mx.array([uniforms(seed, at, sampler.draws) for seed, at in places[rows]])
        of_rows = logits[rows] if size < len(places) else logits
        of_groups = scores[number : number + len(of_part)]
        if apart:
            yield from _in_pieces(of_part[0], of_rows, of_groups[0], randomness)
        else:
            states = joined([group.state for group in of_part]) if sampler.remembered else ()
            masks = [group.mask for group in of_part if group.mask is not None]
            mask = mx.concatenate(masks) if masks else None
            sampled = sample(sampler, of_rows, of_groups, randomness, best, states, mask=mask)
            yield PassPart(sampler, sampled)
        row, number = row + size, number + len(of_part)


def _part_kind(group: SlotRows) -> tuple[int, int, int, bool]:
    """Return what the rows of a part have in common.

    A block that is cut into pieces has parts of its own.
    """
    apart = group.block and group.tokens.size > _piece_size(group.resolved.sampler)
    return *kind_of(group.resolved), id(group.layers) if apart else 0, group.mask is None


def _piece_size(sampler: Sampler) -> int:
    """Return how many tokens of a block are planned together.

    Where the sampler has a state, they are planned one after the other.
    """
    return BLOCK_AT_ONCE if sampler.remembered is None else 1


def _in_pieces(
    group: SlotRows, logits: mx.array, scores: Sequence[RowScores], randomness: mx.array
) -> Iterator[PassPart]:
    """Yield the parts of a block, each planned in the state that the one before leads to."""
    sampler, state = group.resolved.sampler, group.state
    size, best = _piece_size(sampler), group.resolved.settings.top_logprobs
    for begin in range(0, group.tokens.size, size):
        end = min(begin + size, group.tokens.size)
        here = slice(begin, end)
        of_piece = [
            one.part(begin, end) for one in scores if isinstance(one, AttentionQueries | Masked)
        ]
        mask = None if group.mask is None else group.mask[here]
        sampled = sample(
            sampler, logits[here], [of_piece], randomness[here], best, state, mask=mask
        )
        yield PassPart(sampler, sampled)
        following = group.tokens[end : end + 1]
        if sampler.remembered and following.size:
            observed = logprob(sampled.measured, following[:, None])[:, 0]
            state = sampler.remembered.observe(sampled.state, following, observed)


def _layers_of(groups: Sequence[SlotRows]) -> AttentionLayers:
    of_all = any(group.resolved.settings.attention_layers == "all" for group in groups)
    return "all" if of_all else "last"


def _scores_by_group(forward: Forward, groups: Sequence[SlotRows]) -> list[list[RowScores]]:
    by_layer = [(s,) if isinstance(s, RowScores) else s for s in forward.scores]
    by_group = [list(layers) for layers in zip(*by_layer, strict=True)]
    return [
        layers if group.resolved.settings.attention_layers == "all" else layers[-1:]
        for group, layers in zip(groups, by_group, strict=True)
    ]


def _likelihoods(logits: mx.array, following: mx.array, best: int) -> list[Likelihood]:
    """Return how well `(n, vocab)` logits predict the `(n,)` tokens that follow."""
    logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    own = mx.take_along_axis(logprobs, following[:, None], axis=-1)[:, 0]
    rank = 1 + (logprobs > own[:, None]).sum(axis=-1)
    listed: list[tuple[tuple[int, float], ...]] = [()] * len(following)
    if best:
        tokens, gaps = map(numbers, most_probable(-logprobs, best))
        listed = [
            tuple((token, -gap) for token, gap in zip(*row, strict=True))
            for row in zip(tokens, gaps, strict=True)
        ]
    return list(map(Likelihood, numbers(own), numbers(rank), listed))
