"""The other ranks: each repeats on its share of the model what rank 0 does with its own.

`coordinator.py` is the other side, with an example of the orders.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import mlx.core as mx

from ..base import Rows
from ..llama.attention import AttentionQueries
from ..llama.cache import BlockCache, Scores, anchor, arrays_of, copied, hold, share
from ..memory import CLEAR_EVERY, own_cache_tokens, wired_memory
from .model import Share, parts_of


def carry_out(model: Share, orders: Iterable[Mapping[str, Any]]) -> None:
    """Carry out rank 0's orders, waiting for each, until there are no more of them."""
    worker = _ShareWorker(model)
    with wired_memory.raised():
        for number, order in enumerate(orders, 1):
            about = {name: value for name, value in order.items() if name != "do"}
            worker.carry_out(str(order["do"]), about)
            if number % CLEAR_EVERY == 0:
                mx.clear_cache()


class _ShareWorker:
    """The caches under the numbers that rank 0 gave them, and a method for each order."""

    def __init__(self, model: Share) -> None:
        self._model = model
        self._caches: dict[int, list[Any]] = {}
        self._deferred: list[AttentionQueries] = []
        """The attention of the last pass that rank 0 may still ask for."""

    def carry_out(self, order: str, about: Mapping[str, Any]) -> None:
        # 1. Most orders are methods: passes, and what concerns several caches.
        if order not in _CHANGES:
            getattr(self, f"_{order}")(**about)
            return
        # 2. The others are done to each layer of one cache, which may result in another cache.
        given = {name: value for name, value in about.items() if name not in ("cache", "as")}
        changed = [_CHANGES[order](layer, **given) for layer in self._caches[about["cache"]]]
        if "as" in about:
            self._caches[about["as"]] = changed

    def _make(self, cache: int) -> None:
        self._caches[cache] = self._model.make_cache()

    def _drop(self, cache: int) -> None:
        del self._caches[cache]

    def _commit(self, cache: int, row: int, length: int, to: int) -> None:
        for layer, text in zip(self._caches[cache], self._caches[to], strict=True):
            layer.commit(row, length, text)

    # A pass is started at once: rank 0 does so too, and its collectives must meet these in order.

    def _call(self, cache: int, shape: Sequence[int], attention_layers: Any) -> None:
        mx.async_eval(self._model(_unknown(shape), self._caches[cache], attention_layers).logits)

    def _step(self, groups: Sequence[tuple[int, int, bool]], attention_layers: Any) -> None:
        rows = [Rows(self._caches[cache], _unknown([size]), block) for cache, size, block in groups]
        forward = self._model.step(rows, attention_layers)
        mx.async_eval(forward.logits)
        self._defer(forward.scores)

    def _states(
        self, cache: int, shape: Sequence[int], measured: bool, attention_layers: Any
    ) -> None:
        layers = self._caches[cache]
        layers = [BlockCache(layer) for layer in layers] if measured else layers
        states, scores = self._model.states(_unknown(shape), layers, attention_layers)
        mx.async_eval(states)
        self._defer(scores)

    def _head(self, shape: Sequence[int]) -> None:
        states = self._model.group.of_rank_0(mx.zeros(shape, self._model.dtype))
        mx.async_eval(self._model.head(states))

    def _prefill(self, cache: int, shape: Sequence[int]) -> None:
        layers = self._caches[cache]
        self._model.prefill(_unknown(shape), layers)
        mx.async_eval([array for layer in layers for array in arrays_of(layer)])

    def _defer(self, scores: Sequence[Scores]) -> None:
        self._deferred = [part for part in parts_of(scores) if isinstance(part, AttentionQueries)]

    def _scores(self, place: int, first: int, end: int) -> None:
        mx.async_eval(self._deferred[place].part(first, end).scores())

    def _least(self) -> None:
        self._model.least(own_cache_tokens(self._model))


_CHANGES: dict[str, Any] = {
    "trim": lambda layer, count: layer.trim(count),
    "share": share,
    "rows": lambda layer, rows: layer.of_rows(rows),
    "copy": copied,
    "anchor": anchor,
    "hold": hold,
}
"""Orders that are carried out layer by layer."""


def _unknown(shape: Sequence[int]) -> mx.array:
    """Return a placeholder for tokens that rank 0 supplies in the pass."""
    return mx.zeros(shape, mx.uint32)
