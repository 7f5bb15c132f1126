"""What a rank does that is led: it repeats on its share of the model what rank 0 tells.

`models/sharded/coordinator.py` has the other side, and says why there are no tokens in the orders.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import mlx.core as mx

from ..base import Rows
from ..llama.attention import AttentionQueries
from ..llama.cache import (
    BlockCache,
    Scores,
    anchor,
    arrays_of,
    copied,
    hold,
    share,
)
from ..memory import CLEAR_EVERY, own_cache_tokens, wired_memory
from .model import Share, parts_of


def follow(model: Share, orders: Iterable[Mapping[str, Any]]) -> None:
    """Carry out orders until there are no more of them.

    Args:
        model: from `load`, of a group that is led.
        orders: as `models.leading` tells them, waiting for each.
    """
    following = _Following(model)
    with wired_memory.raised():
        for number, order in enumerate(orders, 1):
            about = {name: value for name, value in order.items() if name != "do"}
            following.carry_out(str(order["do"]), about)
            if number % CLEAR_EVERY == 0:
                mx.clear_cache()


class _Following:
    """The caches that rank 0 has numbered, and what is done to them; a method an order."""

    def __init__(self, model: Share) -> None:
        self._model = model
        self._caches: dict[int, list[Any]] = {}
        self._seen: list[AttentionQueries] = []

    def carry_out(self, order: str, about: Mapping[str, Any]) -> None:
        if order not in _CHANGES:
            getattr(self, f"_{order}")(**about)
            return
        given = {name: value for name, value in about.items() if name not in ("cache", "as")}
        found = [_CHANGES[order](layer, **given) for layer in self._caches[about["cache"]]]
        if "as" in about:
            self._caches[about["as"]] = found

    def _make(self, cache: int) -> None:
        self._caches[cache] = self._model.make_cache()

    def _drop(self, cache: int) -> None:
        del self._caches[cache]

    def _commit(self, cache: int, row: int, length: int, to: int) -> None:
        for layer, text in zip(self._caches[cache], self._caches[to], strict=True):
            layer.commit(row, length, text)

    def _call(self, cache: int, shape: Sequence[int], attention_layers: Any) -> None:
        mx.async_eval(self._model(_tokens(shape), self._caches[cache], attention_layers).logits)

    def _step(self, groups: Sequence[tuple[int, int, bool]], attention_layers: Any) -> None:
        rows = [Rows(self._caches[cache], _tokens([size]), run) for cache, size, run in groups]
        forward = self._model.step(rows, attention_layers)
        mx.async_eval(forward.logits)
        self._keep_looks(forward.scores)

    def _states(
        self, cache: int, shape: Sequence[int], watched: bool, attention_layers: Any
    ) -> None:
        layers = self._caches[cache]
        layers = [BlockCache(layer) for layer in layers] if watched else layers
        states, scores = self._model.states(_tokens(shape), layers, attention_layers)
        mx.async_eval(states)
        self._keep_looks(scores)

    def _keep_looks(self, scores: Sequence[Scores]) -> None:
        self._seen = [part for part in parts_of(scores) if isinstance(part, AttentionQueries)]

    def _head(self, shape: Sequence[int]) -> None:
        states = self._model.group.leaders(mx.zeros(shape, self._model.dtype))
        mx.async_eval(self._model.head(states))

    def _looks(self, place: int, first: int, end: int) -> None:
        mx.async_eval(self._seen[place].part(first, end).scores())

    def _prefill(self, cache: int, shape: Sequence[int]) -> None:
        layers = self._caches[cache]
        self._model.prefill(_tokens(shape), layers)
        mx.async_eval([array for layer in layers for array in arrays_of(layer)])

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
"""What is done to every layer of a cache alone."""


def _tokens(shape: Sequence[int]) -> mx.array:
    """Return what stands for tokens that rank 0 knows."""
    return mx.zeros(shape, mx.uint32)
