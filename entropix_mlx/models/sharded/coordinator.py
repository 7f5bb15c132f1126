"""A model whose every pass is told to the other ranks, which compute their share of it.

    rank 0    the command, the decode core, this model ──┐  "step": caches 4 and 7, a row each
                                                         │  "trim": cache 4, by 1
    ranks 1…  Following (decoding), their share      ←───┘

Rank 0 alone decides, so whatever it does with a model works in a group: thinking, forks, batches, a
prompt pool, a person who cancels. The others keep their share of each cache under a number, and
repeat what is done to it. Tokens are not among the orders, since rank 0 queues a pass before it
knows the tokens that it drew: they come with the pass (`Group.leaders`).

The collectives of an order are computed before those of the next one, on rank 0 as on the others.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import KVCache

from ...distributed.group import Group
from ..base import AttentionLayers, Forward, Rows
from ..config import LlamaConfig
from ..llama.attention import AttentionQueries
from ..llama.cache import (
    BlockCache,
    Scores,
    SharedPrefixCache,
    arrays_of,
    own_copy,
)
from ..tapped.caches import Histories
from .model import ShardedModel, ShardedTapped, Share, parts_of


class Orders:
    """Tells the other ranks what to do, and numbers the caches that the orders are about."""

    def __init__(self, group: Group) -> None:
        """Begin without caches; the group must be led."""
        if group.tell is None:
            raise ValueError("rank 0 of a group that is led tells the others what to do")
        self._tell = group.tell
        self._numbers = count()
        self._dropped: deque[int] = deque()

    def __call__(self, do: str, **about: Any) -> None:
        """Send an order."""
        while self._dropped:
            self._tell({"do": "drop", "cache": self._dropped.popleft()})
        self._tell({"do": do} | about)

    def number(self, first: object) -> int:
        """Return a number for the cache whose first layer this is, until that is dropped."""
        number = next(self._numbers)
        # The last reference may go away in the middle of an order.
        weakref.finalize(first, self._dropped.append, number).atexit = False
        return number


class _Led:
    """What the caches of one layer have in common: the first layer's tells of those of all."""

    orders: Orders | None = None
    """None in all layers but the first."""
    number = -1
    """Of the cache, in its first layer."""

    def named(self, orders: Orders) -> _Led:
        """Have this layer tell what is done, and return it."""
        self.orders, self.number = orders, orders.number(self)
        return self

    def tell(self, do: str, became: _Led | None = None, **about: Any) -> None:
        """Tell what is done to this cache, and that another one came of it."""
        if self.orders is None:
            return
        if became is not None:
            about["as"] = became.named(self.orders).number
        self.orders(do, cache=self.number, **about)


class LedCache(_Led, KVCache):  # type: ignore[misc]
    """The cache of one text."""

    def trim(self, count: int) -> int:
        """Take the last tokens away."""
        if count:
            self.tell("trim", count=count)
        return int(super().trim(count))

    def share(self, step: int, rows: int) -> LedRows:
        """Return the cache of rows that go on from here."""
        shared = LedRows([self], step)
        self.tell("share", shared, step=step, rows=rows)
        return shared

    def copy(self, length: int) -> LedCache:
        """Return a cache of its own with the first tokens, at most `length` of them."""
        return _copy(self, length)


class LedRows(_Led, SharedPrefixCache):
    """The cache of rows that share a beginning."""

    def trim(self, count: int) -> None:
        """Take the last tokens of every suffix away."""
        if count:
            self.tell("trim", count=count)
        super().trim(count)

    def of_rows(self, rows: Sequence[int]) -> LedRows:
        """Return the cache of some of the rows; their suffixes are copied."""
        part = LedRows(self.prefixes, self.suffix.step)
        part.suffix = super().of_rows(rows).suffix
        self.tell("rows", part, rows=list(rows))
        return part

    def commit(self, row: int, length: int, text: Any) -> None:
        """Append the first `length` tokens of one row's suffix to the cache of a text."""
        self.tell("commit", row=row, length=length, to=text.number)
        super().commit(row, length, text)

    def share(self, step: int, rows: int) -> LedRows:
        """Return the cache of rows that go on from here, of which there must be one."""
        shared = LedRows([*self.prefixes, self.suffix], step)
        self.tell("share", shared, step=step, rows=rows)
        return shared

    def copy(self, length: int) -> LedCache:
        """Return a cache of one text with the first tokens, at most `length` of them."""
        return _copy(self, length)


def _copy(layer: LedCache | LedRows, length: int) -> LedCache:
    whole, plain = LedCache(), own_copy(layer, length)
    whole.keys, whole.values, whole.offset = plain.keys, plain.values, plain.offset
    layer.tell("copy", whole, length=length)
    return whole


class LedHistories(_Led, Histories):
    """The cache of a text of a tapped model, or of rows that go on from one."""

    def trim(self, count: int) -> None:
        """Take the last tokens of every row away, or more of them."""
        if count:
            self.tell("trim", count=count)
        super().trim(count)

    def of_rows(self, rows: Sequence[int]) -> LedHistories:
        """Return some of the rows."""
        return self._became("rows", super().of_rows(rows), rows=list(rows))

    def commit(self, row: int, length: int, text: Any) -> None:
        """Append the first `length` tokens of one row to the text that it goes on from."""
        self.tell("commit", row=row, length=length, to=text.number)
        super().commit(row, length, text)

    def share(self, step: int, rows: int) -> LedHistories:
        """Return the cache of rows that go on from this text."""
        return self._became("share", super().share(step, rows), step=step, rows=rows)

    def copy(self, length: int) -> LedHistories:
        """Return a cache of its own with at most the first `length` tokens."""
        return self._became("copy", super().copy(length), length=length)

    def anchor(self) -> None:
        """Remember this place."""
        self.tell("anchor")
        super().anchor()

    def hold(self) -> None:
        """Remember the place before a side text."""
        self.tell("hold")
        super().hold()

    def _became(self, do: str, cache: Histories, **about: Any) -> LedHistories:
        led = LedHistories(cache.rows)
        self.tell(do, led, **about)
        return led


class Leading(Share):
    """What the two kinds of models have in common on rank 0: they tell the others every pass."""

    _orders: Orders

    def make_cache(self) -> list[Any]:
        """Return an empty cache that tells what is done to it."""
        cache = self._made()
        cache[0].named(self._orders)
        self._orders("make", cache=cache[0].number)
        return cache

    def _made(self) -> list[Any]:
        raise NotImplementedError

    def __call__(
        self,
        tokens: mx.array,
        cache: Sequence[Any] | None = None,
        attention_layers: AttentionLayers = "last",
    ) -> Forward:
        """Run the model as it does alone; the pass starts at once."""
        cache = cache or self.make_cache()
        number, shape = _number(cache), list(tokens.shape)
        self._orders("call", cache=number, shape=shape, attention_layers=attention_layers)
        forward = super().__call__(tokens, cache, attention_layers)
        mx.async_eval(forward.logits)
        return forward

    def step(self, groups: Sequence[Rows], attention_layers: AttentionLayers = "last") -> Forward:
        """Run the model on one token of each row; the caller must start the pass before another."""
        told = [[_number(rows.layers), rows.tokens.size, rows.run] for rows in groups]
        self._orders("step", groups=told, attention_layers=attention_layers)
        return self._with_looks(super().step(groups, attention_layers))

    def states(
        self, tokens: mx.array, cache: Sequence[Any], attention_layers: AttentionLayers
    ) -> tuple[mx.array, tuple[Scores, ...]]:
        """Return the last states and the scores; the pass starts at once."""
        self._orders(
            "states",
            cache=_number(cache),
            watched=isinstance(cache[0], BlockCache),
            shape=list(tokens.shape),
            attention_layers=attention_layers,
        )
        states, scores = super().states(tokens, cache, attention_layers)
        mx.async_eval(states)
        return states, self._with_looks(Forward(states, scores)).scores

    def head(self, states: mx.array) -> mx.array:
        """Return the logits `(B, L, vocab)` of last states; they start at once."""
        self._orders("head", shape=list(states.shape))
        logits = super().head(self.group.leaders(states))
        mx.async_eval(logits)
        return logits

    def prefill(self, tokens: mx.array, cache: Sequence[Any]) -> None:
        """Put `(1, L)` tokens into a cache; that starts at once."""
        self._orders("prefill", cache=_number(cache), shape=list(tokens.shape))
        super().states(tokens, cache, "last")  # of which only what the cache needs is computed
        mx.async_eval([array for layer in cache for array in arrays_of(layer)])

    def least(self, number: int) -> int:
        """Return the smallest of the ranks' numbers of tokens that they have memory for."""
        self._orders("least")
        return super().least(number)

    def _with_looks(self, forward: Forward) -> Forward:
        """Return scores of which those that are computed on demand are told to the others."""
        seen = [part for part in parts_of(forward.scores) if isinstance(part, AttentionQueries)]
        places = {id(part): place for place, part in enumerate(seen)}

        def told(part: Any) -> Any:
            if not isinstance(part, AttentionQueries):
                return part
            place = places[id(part)]

            def completed(looks: AttentionQueries, scores: mx.array) -> mx.array:
                end = looks.first + looks.length
                self._orders("looks", place=place, first=looks.first, end=end)
                whole = self.group.gathered(scores)
                mx.async_eval(whole)
                return whole

            return part._replace(completed=completed)

        scores = tuple(
            tuple(map(told, layer)) if type(layer) is tuple else told(layer)
            for layer in forward.scores
        )
        return forward._replace(scores=scores)


class LeadingModel(Leading, ShardedModel):
    """Rank 0's share of a model of the Llama family."""

    def __init__(self, config: LlamaConfig, group: Group) -> None:
        """Make a share with random weights, as `ShardedModel`."""
        super().__init__(config, group)
        self._orders = Orders(group)

    def _made(self) -> list[LedCache]:
        return [LedCache() for _ in self.model.layers]


class LeadingTapped(Leading, ShardedTapped):
    """Rank 0's share of a model of mlx-lm."""

    def __init__(self, model: nn.Module, config: Mapping[str, Any], group: Group) -> None:
        """Split a model, as `ShardedTapped`."""
        super().__init__(model, config, group)
        self._orders = Orders(group)

    def _made(self) -> list[LedHistories]:
        return [LedHistories(super(Leading, self).make_cache()[0].rows)]

    def head(self, states: mx.array) -> mx.array:
        """Return them as they are: they are logits already."""
        return states


def _number(cache: Sequence[Any]) -> int:
    """Return the number of a cache, all layers."""
    first: Any = cache[0].cache if isinstance(cache[0], BlockCache) else cache[0]
    return int(first.number)
