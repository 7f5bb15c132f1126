"""The attention scores of any model of mlx-lm, read while it runs and without a change to it.

About a hundred of mlx-lm's modules call ``scaled_dot_product_attention``, a global of the module.
During a forward pass the name stands for a function that notes its arguments and calls the
original. A few call ``mx.softmax`` on scores of their own: there ``mx`` stands for a module that
notes these calls. deepseek_v41, muse_spark and plamo2 call MLX's kernel: they are not measured.

The arguments are turned into scores before the pass is handed out, and forgotten: kept longer, they
would make the cache's next update copy all keys.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import mlx.core as mx
import mlx.nn as nn

_NAME = "scaled_dot_product_attention"
_FAMILY = "mlx_lm.models."
_OWN_SOFTMAX = ("gear", "gemma2", "olmo", "phi3small")  # give scores of their own to mx.softmax
_SCORES_DIMS = 4  # batch, heads, queries, keys; what a router normalises has fewer axes
_LOCK = threading.RLock()  # held during a pass: modules belong to the process


class Tap:
    """Reads the attention scores of a model's layers."""

    def __init__(self, model: nn.Module) -> None:
        names = {type(part).__module__ for part in model.modules()}
        modules = [sys.modules[name] for name in sorted(names) if name.startswith(_FAMILY)]
        self._model = model
        self._named = [module for module in modules if hasattr(module, _NAME)]
        self._softmax = [m for m in modules if m.__name__.rpartition(".")[2] in _OWN_SOFTMAX]
        self._every = False
        self._queries = 1
        self._calls: list[Callable[[], mx.array]] = []

    def __call__(
        self, tokens: mx.array, cache: Sequence[Any], every: bool, queries: int
    ) -> tuple[mx.array, tuple[mx.array, ...]]:
        """Run the model on `(B, L)` token ids; return the logits, and scores as in `Forward`.

        Args:
            tokens: ids.
            cache: of the rows, updated in place.
            every: whether to measure every call of attention; the last one otherwise.
            queries: how many of the last positions to measure.
        """
        with _LOCK:
            self._every, self._queries = every, queries
            try:
                with self._installed():
                    logits = self._model(tokens, cache=cache)
                return logits, tuple(scores() for scores in self._calls)
            finally:
                self._calls.clear()

    @contextmanager
    def _installed(self) -> Iterator[None]:
        replaced: list[tuple[ModuleType, str, Any]] = [
            (module, _NAME, self._noting(getattr(module, _NAME))) for module in self._named
        ]
        proxy = _Proxy(self._softmax_noting)
        replaced += [(module, "mx", proxy) for module in self._softmax]
        originals = [(module, name, getattr(module, name)) for module, name, _ in replaced]
        try:
            for module, name, substitute in replaced:
                setattr(module, name, substitute)
            yield
        finally:
            for module, name, original in originals:
                setattr(module, name, original)

    def _note(self, scores: Callable[[], mx.array]) -> None:
        if not self._every:
            self._calls.clear()
        self._calls.append(scores)

    def _noting(self, original: Callable[..., mx.array]) -> Callable[..., mx.array]:
        def attend(
            queries: mx.array,
            keys: Any,
            values: Any,
            cache: Any,
            scale: float,
            mask: Any,
            sinks: mx.array | None = None,
        ) -> mx.array:
            packing = (cache.group_size, cache.bits) if hasattr(cache, "bits") else None
            last, seen = queries[:, :, -self._queries :], _handle(keys)
            self._note(lambda: attention_scores(last, seen, scale, mask, packing))
            return original(queries, keys, values, cache, scale=scale, mask=mask, sinks=sinks)

        return attend

    def _softmax_noting(self, scores: mx.array, *arguments: Any, **options: Any) -> mx.array:
        axis = options.get("axis", arguments[0] if arguments else None)
        if axis in (-1, scores.ndim - 1) and scores.ndim >= _SCORES_DIMS:
            self._note(lambda: _normalised(scores, self._queries))
        return mx.softmax(scores, *arguments, **options)


class _Proxy:
    """The module ``mx`` with another `softmax`."""

    def __init__(self, softmax: Callable[..., mx.array]) -> None:
        self.softmax = softmax

    def __getattr__(self, name: str) -> Any:
        return getattr(mx, name)


def attention_scores(
    queries: mx.array,
    keys: Any,
    scale: float,
    mask: Any = None,
    packing: tuple[int, int] | None = None,
) -> mx.array:
    """Return the scores before softmax, `(B, queries, heads, keys)` in float32, −∞ where hidden.

    Args:
        queries: `(B, heads, queries, head_dim)`, those of the last positions.
        keys: `(B, kv_heads, keys, head_dim)`, or the three arrays of quantized ones.
        scale: factor on the dot products.
        mask: None, ``"causal"``, boolean, or numbers that are added to the scores: multi-head
            latent attention passes the rotary half of its scores so. Its last queries are these.
        packing: group size and bits of quantized keys.
    """
    batch, heads, length, head_dim = queries.shape
    kv_heads = keys.shape[1] if packing is None else keys[0].shape[1]
    # Grouped-query attention: heads // kv_heads queries share a key head; no key is repeated.
    grouped = queries.reshape(batch, kv_heads, heads // kv_heads * length, head_dim)
    if packing is None:
        scores = _product(grouped, keys)
    else:
        packed, *affine = keys
        scales, biases = (array.astype(mx.float32) for array in affine)
        group_size, bits = packing
        scores = mx.quantized_matmul(
            grouped.astype(mx.float32), packed, scales, biases, True, group_size, bits
        )
    scores = _masked(scale * scores.reshape(batch, heads, length, -1), mask)
    return scores.swapaxes(1, 2)


def _product(queries: mx.array, keys: mx.array) -> mx.array:
    """Return queries · keys in float32, and make no float32 copy of the keys: in half precision a
    second product, from which `addmm` subtracts the rounded first, returns what rounding lost."""
    columns = keys.swapaxes(-1, -2)
    if keys.dtype == mx.float32 or queries.dtype != keys.dtype:
        return queries.astype(mx.float32) @ columns.astype(mx.float32)
    rounded = queries @ columns
    lost = mx.addmm(-rounded, queries, columns)
    return rounded.astype(mx.float32) + lost.astype(mx.float32)


def _masked(scores: mx.array, mask: Any) -> mx.array:
    """Return scores `(B, heads, queries, keys)` with −∞ where the mask hides a key."""
    length, keys = scores.shape[-2:]
    if isinstance(mask, mx.array):
        last = mask if mask.ndim == 1 else mask[..., -length:, :]
        if mask.dtype == mx.bool_:
            return mx.where(last, scores, -mx.inf)
        return mx.where(last > _hidden(mask.dtype), scores + last.astype(mx.float32), -mx.inf)
    if mask == "causal" and length > 1:  # which hides nothing from the last query
        seen = mx.arange(keys) <= mx.arange(keys - length, keys)[:, None]
        return mx.where(seen, scores, -mx.inf)
    return scores


def _normalised(scores: mx.array, queries: int) -> mx.array:
    """Return the scores of the last queries among those that a layer gives to softmax."""
    last = scores[..., -queries:, :].astype(mx.float32)
    last = last.reshape(last.shape[0], -1, *last.shape[-2:])
    return mx.where(last > _hidden(scores.dtype), last, -mx.inf).swapaxes(1, 2)


def _hidden(dtype: mx.Dtype) -> float:
    """Return what a masked score lies below: masks add the lowest number of a type, or −∞."""
    return float(mx.finfo(dtype).min) / 2


def _handle(keys: Any) -> Any:
    """Return keys as they are now: a cache may hand out its own array, and write to it later."""
    if isinstance(keys, mx.array):
        return mx.array(keys)
    return tuple(mx.array(part) for part in keys)
