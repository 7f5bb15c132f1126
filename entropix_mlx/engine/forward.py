"""One position of many texts at a time: run the model, measure, decide, draw.

`Engine.queue` starts a pass and returns before it is computed; `Pass.read` waits for it. Between
the two the caller can queue the next pass, which keeps the device busy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import mlx.core as mx

from ..answer.position import Reading
from ..models.base import AttentionLayers, Forward, LanguageModel, Rows
from ..models.llama.attention import Looks, Masked, RowScores
from ..models.llama.cache import TextCache
from ..models.memory import CLEAR_EVERY
from ..samplers.base import Sampler
from ..samplers.draw import draw_distinct, logprob, uniforms
from ..samplers.metrics.logits import numbers
from ..samplers.position import Sampled, sample
from ..samplers.state import State, joined, rows_of
from .cached_text import CachedText
from .speculation.proposer import Guesser

RUN_AT_ONCE = 4
"""Tokens of a run that are measured and planned together: several arrays of the size of their
logits are in memory then."""


@dataclass(frozen=True)
class Sampling:
    """How the tokens of one answer are measured and drawn."""

    sampler: Sampler
    seed: int
    attention_layers: AttentionLayers = "last"
    top_logprobs: int = 0
    guesser: Guesser | None = None
    """Guesses what comes next; None for no guesses."""

    @property
    def kind(self) -> tuple[int, int]:
        """Rows of one kind are measured and drawn together."""
        return id(self.sampler), self.top_logprobs


class SlotRows(NamedTuple):
    """Rows of one answer that take a token each: its text, or rollouts of one length."""

    layers: Sequence[TextCache]
    tokens: mx.array
    """`(rows,)`"""
    sampling: Sampling
    state: State = ()
    """What the sampler remembers of each row's text, the token included; () for nothing yet. Of a
    run, that is the text with its first token."""
    run: bool = False
    """As in `Rows`."""

    @property
    def rows(self) -> Rows:
        """Return what the model computes."""
        return Rows(self.layers, self.tokens, self.run)


class Engine:
    """A model, and the passes that run on it."""

    def __init__(self, model: LanguageModel) -> None:
        """Set up; the texts and their caches come with each pass."""
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
        forward = self._forward(groups)
        self.start_last()
        mx.async_eval(forward)
        self._unstarted = Pass(self, forward, groups)
        return self._unstarted

    def _forward(self, groups: Sequence[SlotRows]) -> Forward:
        layers: AttentionLayers = "last"
        if any(group.sampling.attention_layers == "all" for group in groups):
            layers = "all"
        return self._model.step([group.rows for group in groups], layers)

    def start_last(self) -> None:
        """Have what follows from the last forward pass computed, without waiting."""
        if self._unstarted is not None:
            self._unstarted.start()
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


class PassPart(NamedTuple):
    """Rows of a pass that share a sampler: arrays that may not have been computed yet."""

    sampler: Sampler
    queued: Sampled

    def arrays(self) -> list[mx.array]:
        """Return everything that will be read."""
        return [self.queued.packed, self.queued.token, *self.queued.state]

    def readings(self) -> Iterator[Reading]:
        """Yield the rows in Python numbers; this waits for the pass."""
        # (mx.eval would wait for the next pass, too.)
        for row in self.queued.read():
            yield Reading(*row)


class Pass:
    """A queued pass: one position of each row."""

    def __init__(self, engine: Engine, forward: Forward, groups: Sequence[SlotRows]) -> None:
        """Build the graph of measuring, deciding and drawing."""
        self._engine = engine
        self._attended = forward.attended
        self._places = [
            (group.sampling, offset)
            for group in groups
            for offset in group.rows.offsets(
                int(group.layers[0].offset) - (group.tokens.size - 1) * group.run
            )
        ]
        self._parts = list(_parts(forward, groups, self._places))
        self._rows = [
            (part, row) for part in self._parts for row in range(part.queued.token.shape[0])
        ]
        self._readings: list[Reading] | None = None

    def arrays(self) -> list[mx.array]:
        """Return everything that will be read."""
        return [array for part in self._parts for array in part.arrays()]

    def start(self) -> None:
        """Have everything that will be read computed, without waiting."""
        mx.async_eval(self.arrays())

    def drawn(self, rows: Sequence[int]) -> mx.array:
        """Return the tokens that were drawn in some rows of one answer: `(rows,)`."""
        part, inside = self._inside(rows)
        return rows_of((part.queued.token,), inside)[0]

    def logprobs(self, rows: Sequence[int], tokens: mx.array | None = None) -> mx.array:
        """Return the log probabilities `(rows,)` of the drawn tokens, or of others `(rows,)`."""
        part, inside = self._inside(rows)
        if tokens is None:
            return rows_of((part.queued.logprob,), inside)[0]
        chosen = [part.queued.row(row).measured for row in inside]
        columns = [logprob(one, tokens[n, None, None]) for n, one in enumerate(chosen)]
        return mx.concatenate(columns)[:, 0]

    def noted(self, rows: Sequence[int]) -> State:
        """Return what the sampler remembers of the positions of some rows of one answer."""
        part, inside = self._inside(rows)
        return rows_of(part.queued.state, inside)

    def _inside(self, rows: Sequence[int]) -> tuple[PassPart, list[int]]:
        """Return the part of some rows of one answer, and where they are in it."""
        return self._rows[rows[0]][0], [self._rows[row][1] for row in rows]

    def read(self) -> list[Reading]:
        """Wait for the pass and return every row in Python numbers: its one synchronisation."""
        if self._readings is None:
            self._engine.start_last()
            self._readings = [reading for part in self._parts for reading in part.readings()]
            if not self._attended:
                self._readings = [reading.without_attention() for reading in self._readings]
        return self._readings

    def position(self, row: int) -> RowPosition:
        """Return what is known about one row's position, which must have been read.

        Raises:
            NonFiniteLogitsError: the model computed NaN or infinite logits there.
        """
        reading = self.read()[row].checked()
        part, index = self._rows[row]
        return RowPosition(reading, part, index, *self._places[row])


class RowPosition:
    """What is known about the place after a token of one text."""

    def __init__(
        self, reading: Reading, part: PassPart, row: int, sampling: Sampling, position: int
    ) -> None:
        """Combine what was read with the arrays that it was read from."""
        self.reading = reading
        self._part = part
        self._row = row
        self._sampling = sampling
        self._position = position

    def given(self, tokens: Sequence[int]) -> list[Reading]:
        """Return the reading with each of some tokens in place of the one that was drawn."""
        measured = self._part.queued.row(self._row).measured
        logprobs = numbers(logprob(measured, mx.array([list(tokens)])))[0]
        return [
            self.reading._replace(token=token, logprob=value)
            for token, value in zip(tokens, logprobs, strict=True)
        ]

    def openings(self, count: int) -> list[int]:
        """Return different tokens that may stand here, the most probable one first."""
        one = self._part.queued.row(self._row)
        sampler, seed = self._part.sampler, self._sampling.seed
        return draw_distinct(one.measured, one.plan, sampler, count, seed, self._position)


def _parts(
    forward: Forward, groups: Sequence[SlotRows], places: Sequence[tuple[Sampling, int]]
) -> Iterator[PassPart]:
    """Yield the parts of a pass; groups that share a sampler must follow one another."""
    # A single run is one text with several tokens; otherwise each row has a token.
    logits = forward.logits.reshape(-1, forward.logits.shape[-1])
    scores = _by_group(forward, groups)
    row = number = 0
    for (_, count, apart), members in groupby(groups, key=_kind):
        of_part = list(members)
        size = sum(group.tokens.size for group in of_part)
        rows = slice(row, row + size)
        sampler = of_part[0].sampling.sampler
        randomness = mx.array([uniforms(s.seed, at, sampler.draws) for s, at in places[rows]])
        of_rows = logits[rows] if size < len(places) else logits
        looked = scores[number : number + len(of_part)]
        if apart:
            yield from _in_pieces(of_part[0], of_rows, looked[0], randomness)
        else:
            states = joined([group.state for group in of_part]) if sampler.remembered else ()
            queued = sample(sampler, of_rows, looked, randomness, count, states)
            yield PassPart(sampler, queued)
        row, number = row + size, number + len(of_part)


def _kind(group: SlotRows) -> tuple[int, int, int]:
    """Return what the rows of a part have in common.

    A run that is cut into pieces has parts of its own.
    """
    apart = group.run and group.tokens.size > _piece(group.sampling.sampler)
    return *group.sampling.kind, id(group.layers) if apart else 0


def _piece(sampler: Sampler) -> int:
    """Return how many tokens of a run are planned together.

    Where a sampler remembers the text, they are planned one after the other.
    """
    return RUN_AT_ONCE if sampler.remembered is None else 1


def _in_pieces(
    group: SlotRows, logits: mx.array, looks: Sequence[RowScores], randomness: mx.array
) -> Iterator[PassPart]:
    """Yield the parts of a run, each planned in the state that the one before leads to."""
    sampler, state = group.sampling.sampler, group.state
    size, count = _piece(sampler), group.sampling.top_logprobs
    for begin in range(0, group.tokens.size, size):
        end = min(begin + size, group.tokens.size)
        here = slice(begin, end)
        look = [one.part(begin, end) for one in looks if isinstance(one, Looks | Masked)]
        queued = sample(sampler, logits[here], [look], randomness[here], count, state)
        yield PassPart(sampler, queued)
        following = group.tokens[end : end + 1]
        if sampler.remembered and following.size:
            observed = logprob(queued.measured, following[:, None])[:, 0]
            state = sampler.remembered.observe(queued.state, following, observed)


def _by_group(forward: Forward, groups: Sequence[SlotRows]) -> list[list[RowScores]]:
    """Return the attention scores that are measured, a list of layers for each group."""
    by_layer = [(s,) if isinstance(s, RowScores) else s for s in forward.scores]
    by_group = [list(layers) for layers in zip(*by_layer, strict=True)]
    return [
        layers if group.sampling.attention_layers == "all" else layers[-1:]
        for group, layers in zip(groups, by_group, strict=True)
    ]
