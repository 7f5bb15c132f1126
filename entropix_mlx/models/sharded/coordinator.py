"""Rank 0's share of a model: it sends every pass to the other ranks, which compute theirs.

    rank 0: the command, the decode core, this model     ranks 1…: `worker.py`, their shares
    1. make_cache()                 {"do": "make", "cache": 4}          an empty cache, number 4
    2. prefill(tokens, cache)       {"do": "prefill", "cache": 4, …}    the same pass on their heads
    3. cache.share(step, rows=2)    {"do": "share", "cache": 4, "as": 5, …}
    4. step([Rows(cache 5, …)])     {"do": "step", "groups": [[5, 2, false]], …}
    5. cache.trim(1)                {"do": "trim", "cache": 4, "count": 1}
    6. the cache is deleted         {"do": "drop", "cache": 5}          before the next order

Rank 0 alone decides, so everything that uses a model works in a group: thinking, forks, batches, a
prompt pool, a person who cancels. Three rules keep the ranks together:

1. The caches of one text or of some rows have a number. The others repeat under it what is done.
2. Orders hold no tokens: rank 0 queues a pass before it knows the tokens that it drew. These come
   with the pass, by a collective (`Group.of_rank_0`).
3. Every pass is started as soon as it is built, so the collectives of an order are computed before
   those of the next one, on rank 0 as on the others.
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
from ..llama.attention import AttentionQueries, RowScores
from ..llama.cache import BlockCache, Scores, SharedPrefixCache, arrays_of, copy_into
from ..tapped.caches import Histories
from .model import ShardedModel, ShardedTapped, Share, each_part

_AnyCache: Any = object
"""What `_Mirrored` is mixed into."""


class Orders:
    """Sends orders to the other ranks, and numbers the caches that they are about."""

    def __init__(self, group: Group) -> None:
        if group.send is None:
            raise ValueError("rank 0 of a coordinated group needs a function that sends orders")
        self._send = group.send
        self._numbers = count()
        self._dropped: deque[int] = deque()

    def __call__(self, do: str, **about: Any) -> None:
        while self._dropped:
            self._send({"do": "drop", "cache": self._dropped.popleft()})
        self._send({"do": do} | about)

    def number(self, first: object) -> int:
        """Return a number for the cache whose first layer this is, until that is dropped."""
        number = next(self._numbers)
        # The last reference may go away in the middle of an order: the next one sends the drop.
        weakref.finalize(first, self._dropped.append, number).atexit = False
        return number


class _Mirrored(_AnyCache):  # type: ignore[misc]
    """A layer's cache whose changes the other ranks repeat; the first layer's reports for all."""

    orders: Orders | None = None
    """None in all layers but the first."""
    number = -1
    """The number of the cache, in its first layer."""

    def register(self, orders: Orders) -> int:
        """Have this layer report changes, and return the number of its cache."""
        self.orders, self.number = orders, orders.number(self)
        return self.number

    def report(self, do: str, **about: Any) -> None:
        if self.orders is not None:
            self.orders(do, cache=self.number, **about)

    def trim(self, count: int) -> Any:
        """Remove the last tokens of every row, or more of them."""
        if count:
            self.report("trim", count=count)
        return super().trim(count)

    def of_rows(self, rows: Sequence[int]) -> Any:
        return self._created(super().of_rows(rows), "rows", rows=list(rows))

    def commit(self, row: int, length: int, text: Any) -> None:
        self.report("commit", row=row, length=length, to=text.number)
        super().commit(row, length, text)

    def share(self, step: int, rows: int) -> Any:
        return self._created(super().share(step, rows), "share", step=step, rows=rows)

    def copy(self, length: int) -> Any:
        return self._created(super().copy(length), "copy", length=length)

    def _created(self, cache: _Mirrored, do: str, **about: Any) -> _Mirrored:
        if self.orders is not None:
            self.report(do, **about, **{"as": cache.register(self.orders)})
        return cache


class _TextLayer(KVCache):  # type: ignore[misc]
    def share(self, step: int, _: int) -> MirroredRows:
        return MirroredRows([self], step)

    def copy(self, length: int) -> MirroredCache:
        return _copied(self, length)


class _RowsLayer(SharedPrefixCache):
    def copy(self, length: int) -> MirroredCache:
        return _copied(self, length)


def _copied(layer: KVCache | SharedPrefixCache, length: int) -> MirroredCache:
    whole = MirroredCache()
    copy_into(whole, layer, length)
    return whole


class MirroredCache(_Mirrored, _TextLayer):
    """The cache of one text."""


class MirroredRows(_Mirrored, _RowsLayer):
    """The cache of rows that share a beginning."""


class MirroredHistories(_Mirrored, Histories):
    """The cache of a text of a tapped model, or of rows that go on from one."""

    def anchor(self) -> None:
        self.report("anchor")
        super().anchor()

    def hold(self) -> None:
        self.report("hold")
        super().hold()


class CoordinatorShare(Share):
    """Rank 0's share of either kind of model: every pass is sent to the others."""

    _orders: Orders

    def make_cache(self) -> list[Any]:
        cache = self._empty_cache()
        self._orders("make", cache=cache[0].register(self._orders))
        return cache

    def _empty_cache(self) -> list[Any]:
        raise NotImplementedError

    def __call__(
        self,
        tokens: mx.array,
        cache: Sequence[Any] | None = None,
        attention_layers: AttentionLayers = "last",
    ) -> Forward:
        cache = cache or self.make_cache()
        number, shape = _number(cache), list(tokens.shape)
        self._orders("call", cache=number, shape=shape, attention_layers=attention_layers)
        forward = super().__call__(tokens, cache, attention_layers)
        mx.async_eval(forward.logits)
        return forward

    def step(self, groups: Sequence[Rows], attention_layers: AttentionLayers = "last") -> Forward:
        """Run the model on one token of each row; the caller must start the pass before another."""
        ordered = [[_number(rows.layers), rows.tokens.size, rows.block] for rows in groups]
        self._orders("step", groups=ordered, attention_layers=attention_layers)
        return self._with_orders(super().step(groups, attention_layers))

    def states(
        self, tokens: mx.array, cache: Sequence[Any], attention_layers: AttentionLayers
    ) -> tuple[mx.array, tuple[Scores, ...]]:
        """Return the last states and the scores; the pass starts at once."""
        self._orders(
            "states",
            cache=_number(cache),
            measured=isinstance(cache[0], BlockCache),
            shape=list(tokens.shape),
            attention_layers=attention_layers,
        )
        states, scores = super().states(tokens, cache, attention_layers)
        mx.async_eval(states)
        return states, self._with_orders(Forward(states, scores)).scores

    def head(self, states: mx.array) -> mx.array:
        self._orders("head", shape=list(states.shape))
        logits = super().head(self.group.of_rank_0(states))
        mx.async_eval(logits)
        return logits

    def prefill(self, tokens: mx.array, cache: Sequence[Any]) -> None:
        """Put `(1, L)` tokens into a cache; the pass starts at once."""
        self._orders("prefill", cache=_number(cache), shape=list(tokens.shape))
        super().states(tokens, cache, "last")  # only the part that the cache needs is computed
        mx.async_eval([array for layer in cache for array in arrays_of(layer)])

    def least(self, number: int) -> int:
        """Return the smallest of the ranks' numbers of tokens that they have memory for."""
        self._orders("least")
        return super().least(number)

    def _with_orders(self, forward: Forward) -> Forward:
        """Return a pass whose deferred scores are ordered from the others when they are needed."""
        # The index of a deferred part among those of the pass is the same on all ranks.
        places = count()

        def ordered(part: RowScores) -> RowScores:
            if not isinstance(part, AttentionQueries):
                return part
            place = next(places)

            def gather(queries: AttentionQueries, scores: mx.array) -> mx.array:
                end = queries.first + queries.length
                self._orders("scores", place=place, first=queries.first, end=end)
                of_all_ranks = self.group.gathered(scores)
                mx.async_eval(of_all_ranks)
                return of_all_ranks

            return part._replace(gather=gather)

        return forward._replace(scores=each_part(ordered, forward.scores))


class CoordinatorModel(CoordinatorShare, ShardedModel):
    """Rank 0's share of a model of the Llama family."""

    def __init__(self, config: LlamaConfig, group: Group) -> None:
        super().__init__(config, group)
        self._orders = Orders(group)

    def _empty_cache(self) -> list[MirroredCache]:
        return [MirroredCache() for _ in self.model.layers]


class CoordinatorTapped(CoordinatorShare, ShardedTapped):
    """Rank 0's share of a model of mlx-lm."""

    def __init__(self, model: nn.Module, config: Mapping[str, Any], group: Group) -> None:
        super().__init__(model, config, group)
        self._orders = Orders(group)

    def _empty_cache(self) -> list[MirroredHistories]:
        return [MirroredHistories(super(CoordinatorShare, self).make_cache()[0].rows)]

    def head(self, states: mx.array) -> mx.array:
        return states


def _number(cache: Sequence[Any]) -> int:
    first: Any = cache[0].cache if isinstance(cache[0], BlockCache) else cache[0]
    return int(first.number)
