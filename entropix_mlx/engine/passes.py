"""One pass over the rows of a batch: the forward pass, then measuring, deciding and drawing.

The forward pass starts at once and needs only tokens, which may be arrays that are not computed
yet. `sample` queues the rest; `read` waits for it and fetches one array.
"""

from __future__ import annotations

from collections.abc import Sequence as Tokens
from functools import cached_property
from typing import Any

import mlx.core as mx
import numpy as np

from ..answer.forks import ForkTrial, GrowingBranch
from ..models import caches
from ..models.base import LanguageModel
from ..samplers.draw import uniforms
from ..samplers.logit_processors import WINDOW
from ..samplers.metrics import measure_attention
from ..samplers.position import Sampled, sample
from ..samplers.row import Row
from .constrained import Constrained
from .sequence import Sequence


class Entry:
    """A row of the batch: a sequence, or a branch of it."""

    def __init__(self, sequence: Sequence, length: int, branch: GrowingBranch | None = None):
        self.sequence = sequence
        self.branch = branch
        self.length = length  # tokens that are in the cache
        self.known: int | None = None  # to be fed next; None for what the last pass drew
        self.cache: list[Any] | None = None  # of a branch that has ended
        self.constraint: Constrained | None = sequence.constraint
        if branch is not None and self.constraint is not None:
            self.constraint = self.constraint.branch()

    def take(self, row: Row) -> int | ForkTrial | None:
        """Take the row at the end of the text; return what comes next, as `Sequence.take`."""
        if self.branch is None:
            return self.sequence.take(row)
        self.branch.grow(row.checked())
        if not self.branch.living or self.sequence.cancelled:
            return None
        if self.constraint is not None:
            self.constraint.add(row.token)
        return row.token

    @property
    def tokens(self) -> list[int]:
        """Of the text, those before the prompt excluded."""
        branch = [] if self.branch is None else self.branch.tokens
        return [*self.sequence.prompt, *self.sequence.tokens, *branch]

    @property
    def certain(self) -> bool:
        """Whether the drawn token is certain to be the next one, unless it ends."""
        return self.branch is not None or self.sequence.certain


class Lane:
    """Entries whose rows run in one batch of caches; they follow one another as the rows do."""

    def __init__(self, entries: list[Entry], cache: list[Any]) -> None:
        self.entries = entries
        self.cache = cache

    def extract(self, entry: Entry) -> list[Any]:
        """Return the cache of one entry, as of a sequence that was never in a batch."""
        if len(self.entries) == 1:
            return self.cache
        return caches.extract(self.cache, self.entries.index(entry))

    def keep(self, entries: Tokens[Entry]) -> None:
        """Drop all entries but these."""
        if len(entries) == len(self.entries):
            return
        if entries:
            self.cache = caches.keep(self.cache, [self.entries.index(e) for e in entries])
        self.entries = list(entries)

    def extend(self, entries: Tokens[Entry], cache: list[Any]) -> None:
        self.cache = caches.extend(self.cache, cache) if self.entries else cache
        self.entries += entries

    def take_back(self, entries: Tokens[Entry]) -> None:
        """Take the last token of some entries back; they become the last rows."""
        if not entries:
            return
        for entry in entries:
            entry.length -= 1
        if len(entries) == len(self.entries):
            caches.trim(self.cache, 1)
            return
        shortened = [self.extract(entry) for entry in entries]
        for cache in shortened:
            caches.trim(cache, 1)
        self.keep([entry for entry in self.entries if entry not in entries])
        self.extend(entries, caches.merge(shortened))


class Pass:
    """A forward pass in flight, with one position of each row, or several of a single one."""

    def __init__(
        self,
        model: LanguageModel,
        lanes: Tokens[Lane],
        last: Pass | None = None,
        proposed: Tokens[int] = (),
    ) -> None:
        """Start the forward pass; the tokens join the caches.

        Args:
            model, lanes: each entry takes the token that it knows, or that the last pass drew.
            last: that pass.
            proposed: tokens that may follow the one of the only entry.
        """
        self.proposed = tuple(proposed)
        self.entries = [entry for lane in lanes for entry in lane.entries]
        self.row_of = {entry: row for row, entry in enumerate(self.entries)}
        # Entries whose rows are of no use: another token was wanted, or they have ended.
        self.dropped: set[Entry] = set()
        self.sampled: list[tuple[list[int], Sampled]] = []
        # The tokens that were known when they were queued.
        self.fed = {entry: entry.known for entry in self.entries if entry.known is not None}
        self._forwards = [self._forward(model, lane, last) for lane in lanes]
        self.places: list[int] = []
        for entry in self.entries:
            self.places += range(entry.length + 1, entry.length + 2 + len(self.proposed))
            entry.length += 1 + len(self.proposed)
            entry.known = None
        mx.async_eval(
            [(logits, scores) for logits, scores, _ in self._forwards],
            [caches.arrays(lane.cache) for lane in lanes],
        )

    def _forward(
        self, model: LanguageModel, lane: Lane, last: Pass | None
    ) -> tuple[mx.array, tuple[mx.array, ...], int]:
        every = any(
            entry.sequence.resolved.settings.attention_layers == "all" for entry in lane.entries
        )
        queries = 1 + len(self.proposed)
        tokens = self._tokens(lane, last)
        forward = model(tokens, lane.cache, "all" if every else "last", queries)
        rows = tokens.size
        scores = tuple(layer.reshape(rows, *layer.shape[2:]) for layer in forward.scores)
        return forward.logits.reshape(rows, -1), scores, rows

    def _tokens(self, lane: Lane, last: Pass | None) -> mx.array:
        known = [entry.known for entry in lane.entries]
        if None not in known:
            return mx.array([[*known, *self.proposed]]).reshape(len(known), -1)
        assert last is not None
        rows = [last.row_of.get(entry, 0) for entry in lane.entries]
        drawn = last.drawn if rows == list(range(last.drawn.size)) else last.drawn[mx.array(rows)]
        if all(token is None for token in known):
            return drawn[:, None]
        given = mx.array([0 if token is None else token for token in known], dtype=drawn.dtype)
        return mx.where(mx.array([token is None for token in known]), drawn, given)[:, None]

    def sample(self) -> None:
        """Queue what follows the forward pass, once the tokens of all rows are known."""
        logits = [logits for logits, _, _ in self._forwards]
        together = logits[0] if len(logits) == 1 else mx.concatenate(logits)
        rows = [entry for entry in self.entries for _ in range(1 + len(self.proposed))]
        masks = self._masks()
        groups: dict[tuple[Any, ...], list[int]] = {}
        for row, entry in enumerate(rows):
            resolved = entry.sequence.resolved
            settings, masked = resolved.settings, masks[row] is not None
            kind = resolved.sampler, settings.top_logprobs, settings.attention_layers, masked
            groups.setdefault(kind, []).append(row)
        for (sampler, listed, layers, masked), index in groups.items():
            places = [(rows[row].sequence.resolved.seed, self.places[row]) for row in index]
            chosen, attention = _rows(together, index), self._attention[layers]
            changed = None
            if sampler.penalties is not None:
                one_by_one = []
                for at, row in enumerate(index):
                    number = row - self.row_of[rows[row]]
                    one_by_one.append(self._penalised(rows[row], number, chosen[at : at + 1]))
                changed = mx.concatenate(one_by_one)
            found = sample(
                sampler,
                chosen,
                None if attention is None else _rows(attention, index),
                mx.array([uniforms(seed, place, sampler.draws) for seed, place in places]),
                listed,
                places=places,
                mask=mx.array(np.stack([masks[row] for row in index])) if masked else None,
                changed=changed,
            )
            self.sampled.append((index, found))
        mx.async_eval([(found.packed, found.token) for _, found in self.sampled])

    @cached_property
    def _attention(self) -> dict[str, mx.array | None]:
        """The metrics of attention `(rows, 5)`, of the last layer and of all."""
        if not all(scores for _, scores, _ in self._forwards):
            return {"last": None, "all": None}
        layers = {entry.sequence.resolved.settings.attention_layers for entry in self.entries}
        found: dict[str, mx.array | None] = {}
        for name in layers:
            measured = [
                measure_attention(scores if name == "all" else scores[-1:])
                for _, scores, _ in self._forwards
            ]
            found[name] = measured[0] if len(measured) == 1 else mx.concatenate(measured)
        return found

    def _masks(self) -> list[Any]:
        """Return what may follow each row; None where everything may."""
        found: list[Any] = []
        for entry in self.entries:
            constraint = None if entry in self.dropped else entry.constraint
            masks = None if constraint is None else constraint.masks(self.proposed)
            found += [None] * (1 + len(self.proposed)) if masks is None else masks
        return found

    def _penalised(self, entry: Entry, number: int, logits: mx.array) -> mx.array:
        text = [*entry.tokens, *self.proposed[:number]]
        answered = len(text) - len(entry.sequence.prompt)
        penalties = entry.sequence.resolved.sampler.penalties
        assert penalties is not None
        return penalties(logits, mx.array(text[-WINDOW:]), answered)

    @cached_property
    def drawn(self) -> mx.array:
        """The tokens that were drawn, `(rows,)`."""
        if len(self.sampled) == 1:
            return self.sampled[0][1].token
        order = np.argsort([row for index, _ in self.sampled for row in index])
        return mx.concatenate([found.token for _, found in self.sampled])[mx.array(order)]

    def read(self) -> list[list[Row]]:
        """Wait for the pass, and return the rows of each entry."""
        rows: dict[int, Row] = {}
        measured = all(scores for _, scores, _ in self._forwards)
        for index, sampled in self.sampled:
            for at, row in zip(index, sampled.read(), strict=True):
                rows[at] = row if measured else row.without_attention()
        size = 1 + len(self.proposed)
        firsts = range(0, len(rows), size)
        return [[rows[at] for at in range(first, first + size)] for first in firsts]


def _rows(array: mx.array, index: list[int]) -> mx.array:
    return array if len(index) == array.shape[0] else array[mx.array(index)]
