"""Reading the attention of a model of mlx-lm while it runs, without a change to the model.

About a hundred of mlx-lm's modules call ``scaled_dot_product_attention`` by that name, which is a
global of the module. For the time of a forward pass the name stands for a function that notes its
arguments and calls the original; so what is measured is exactly what reaches MLX's kernel. A few
modules call the kernel itself, or ``mx.softmax`` on scores of their own: there the name ``mx``
stands for a module that notes these calls.

The arguments are turned into scores before the pass is handed out, and forgotten. Kept longer, they
would make the cache's next update copy all keys.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, TypeAlias

import mlx.core as mx
import mlx.nn as nn

from ..llama.attention import Masked

_NAME = "scaled_dot_product_attention"
_FAMILY = "mlx_lm.models."
_OWN_SOFTMAX = ("gear", "gemma2", "olmo", "phi3small")
"""Modules whose layers compute scores of their own, and give them to ``mx.softmax``."""
_OWN_CALL = ("deepseek_v41", "plamo2")
"""Modules whose layers call MLX's kernel itself."""
_SCORES_DIMS = 4
"""Scores have a batch, heads, queries and keys; what a router normalises has fewer axes."""


Attention: TypeAlias = mx.array | Masked
"""The attention scores of one call, for its last query: `(B, heads, keys)`; or, of one text, for
each of its last queries: `(queries, heads, keys)`. Sinks are left out."""


class Tap:
    """Notes the attention of a model's layers."""

    def __init__(self, model: nn.Module) -> None:
        names = {type(part).__module__ for part in model.modules()}
        found = [sys.modules[n] for n in sorted(names) if n.startswith(_FAMILY)]
        self._named = [module for module in found if hasattr(module, _NAME)]
        self._softmax = [module for module in found if _last_name(module) in _OWN_SOFTMAX]
        self._direct = [module for module in found if _last_name(module) in _OWN_CALL]
        self._all = False
        self._queries = 1
        self._found: list[Callable[[], Attention]] = []

    def run(
        self, call: Callable[[], mx.array], every: bool, queries: int = 1
    ) -> tuple[mx.array, list[Attention]]:
        """Run a forward pass; return its result and the attention of its last call, or of all.

        Args:
            call: the pass.
            every: whether to return the attention of all calls.
            queries: of how many of a call's last queries.
        """
        self._all, self._queries = every, queries
        try:
            with self._installed():
                result = call()
            return result, [read() for read in self._found]
        finally:
            self._found.clear()

    @contextmanager
    def _installed(self) -> Iterator[None]:
        replaced: list[tuple[ModuleType, str, Any]] = [
            (module, _NAME, self._noting(getattr(module, _NAME))) for module in self._named
        ]
        proxy = _Proxy(mx, softmax=self._softmax_noting)
        replaced += [(module, "mx", proxy) for module in self._softmax]
        fast = _Proxy(mx.fast, **{_NAME: self._kernel_noting})
        replaced += [(module, "mx", _Proxy(mx, fast=fast)) for module in self._direct]
        originals = [(module, name, getattr(module, name)) for module, name, _ in replaced]
        try:
            for module, name, substitute in replaced:
                setattr(module, name, substitute)
            yield
        finally:
            for module, name, original in originals:
                setattr(module, name, original)

    def _note(self, read: Callable[[], Attention]) -> None:
        if not self._all:
            self._found.clear()
        self._found.append(read)

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
            self._note(lambda: _attention(last, seen, scale, mask, packing))
            return original(queries, keys, values, cache, scale=scale, mask=mask, sinks=sinks)

        return attend

    def _kernel_noting(
        self,
        queries: mx.array,
        keys: mx.array,
        values: mx.array,
        *,
        scale: float,
        mask: Any = None,
        sinks: mx.array | None = None,
    ) -> mx.array:
        last, seen = queries[:, :, -self._queries :], _handle(keys)
        self._note(lambda: _attention(last, seen, scale, mask))
        return mx.fast.scaled_dot_product_attention(
            queries, keys, values, scale=scale, mask=mask, sinks=sinks
        )

    def _softmax_noting(self, scores: mx.array, *arguments: Any, **options: Any) -> mx.array:
        axis = options.get("axis", arguments[0] if arguments else None)
        if axis in (-1, scores.ndim - 1) and scores.ndim >= _SCORES_DIMS:
            self._note(lambda: _of_softmax(scores, self._queries))
        return mx.softmax(scores, *arguments, **options)


class _Proxy:
    def __init__(self, module: ModuleType | Any, **substitutes: Any) -> None:
        self._module = module
        self.__dict__.update(substitutes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _handle(keys: Any) -> Any:
    """Return keys as they are now: a cache may hand out its own array, and write to it later."""
    if isinstance(keys, mx.array):
        return mx.array(keys)
    return tuple(mx.array(part) for part in keys)


def _last_name(module: ModuleType) -> str:
    return module.__name__.rpartition(".")[2]


def _attention(
    queries: mx.array,
    keys: Any,
    scale: float,
    mask: Any,
    packing: tuple[int, int] | None = None,
) -> Attention:
    """Return the attention of the last queries of a call.

    Args:
        queries: `(B, heads, queries, head_dim)`, the last ones of each head.
        keys: `(B, kv_heads, keys, head_dim)`, or the three arrays of quantized ones.
        scale: factor on the dot products.
        mask: None, ``"causal"``, boolean, or a number that is added to each score: multi-head
            latent attention passes the rotary half of its scores so.
        packing: group size and bits of quantized keys.
    """
    batch, heads, length, head_dim = queries.shape
    quantized = packing is not None
    kv_heads = keys[0].shape[1] if quantized else keys.shape[1]
    # In float32, however the model computes: the entropy of half-precision scores is off by more
    # than a thousandth of a bit.
    grouped = queries.astype(mx.float32) * scale
    grouped = grouped.reshape(batch, kv_heads, heads // kv_heads * length, head_dim)
    if packing is not None:
        group_size, bits = packing
        packed, scales, biases = keys
        scores = mx.quantized_matmul(
            grouped,
            packed,
            scales.astype(mx.float32),
            biases.astype(mx.float32),
            transpose=True,
            group_size=group_size,
            bits=bits,
        )
    else:
        scores = grouped @ keys.astype(mx.float32).swapaxes(-1, -2)
    scores = scores.reshape(batch, heads, length, -1)
    seen = None
    if isinstance(mask, mx.array):
        last = mask if mask.ndim == 1 else mask[..., -length:, :]
        if mask.dtype == mx.bool_:
            seen = mx.broadcast_to(last, scores.shape)
        else:
            seen = mx.broadcast_to(last > _hidden(mask.dtype), scores.shape)
            scores = scores + last.astype(mx.float32)
    elif mask == "causal" and length > 1:  # which hides nothing from the last query
        keys_seen = scores.shape[-1] - length + 1 + mx.arange(length)
        seen = mx.broadcast_to(mx.arange(scores.shape[-1]) < keys_seen[:, None], scores.shape)
    return _finished(scores, seen)


def _of_softmax(scores: mx.array, queries: int) -> Attention:
    last = scores[..., -queries:, :].astype(mx.float32)
    last = last.reshape(last.shape[0], -1, *last.shape[-2:])
    return _finished(last, last > _hidden(scores.dtype))


def _hidden(dtype: mx.Dtype) -> float:
    """Return what a masked score lies below: masks add the lowest number of a type, or −∞."""
    return float(mx.finfo(dtype).min) / 2


def _finished(scores: mx.array, seen: mx.array | None) -> Attention:
    rows, length = scores.shape[0] * scores.shape[2], scores.shape[2]
    scores = scores if seen is None else mx.where(seen, scores, -mx.inf)
    scores = scores.swapaxes(1, 2).reshape(rows, scores.shape[1], -1)
    return scores if seen is None and length == 1 else Masked(scores)
