"""The interface of a model to the decode core: `LanguageModel`, and the `Forward` of its passes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.generate import maybe_quantize_kv_cache
from mlx_lm.models.cache import CacheList, KVCache, RotatingKVCache, make_prompt_cache

from . import caches
from .config import shape_of
from .ranks import gather_heads, share
from .tap import Tap

AttentionLayers = Literal["last", "all"]  # whose attention is measured; as published, the last


class Forward(NamedTuple):
    """The output of a forward pass over B rows of L tokens."""

    logits: mx.array  # `(B, L, vocab)`, as the model computes them
    scores: tuple[mx.array, ...]
    """Of each measured layer, the attention scores of the last positions before softmax:
    `(B, queries, heads, keys)` in float32, −∞ where a key is hidden or padding. Sinks are left out.
    Empty where attention was not measured, or cannot be."""


class LanguageModel:
    """A causal language model, of any architecture of mlx-lm, whose attention can be measured."""

    def __init__(
        self,
        inner: nn.Module,
        config: Mapping[str, Any],
        group: mx.distributed.Group | None = None,
    ) -> None:
        """Wrap a model, whose weights need not have been read.

        Args:
            inner: a model of mlx-lm's, or our own port, which returns its scores itself.
            config: its ``config.json``.
            group: the ranks that compute it together; `inner` is this one's part.
        """
        self.inner = inner
        self.group = group
        self.counts: Any = None
        """The `api.learned.TokenCounts` that its tokens are counted in; None where they are not."""
        self._measured = getattr(inner, "with_scores", None) or Tap(inner)
        self._quantization: tuple[int, int, int] | None = None
        self._block_costs: dict[int, float] = {}
        # MLX knows the shapes of a pass before it computes it, and nothing is computed here.
        cache = self.make_cache()
        logits, scores = self._measured(mx.array([[0]]), cache, every=True, queries=1)
        self.config = shape_of(config, int(logits.shape[-1]))
        ranks = 1 if group is None else group.size()
        self.attention_heads = tuple(ranks * layer.shape[2] for layer in scores)
        """Heads of each layer whose attention can be measured; empty without any."""
        self.cache_bytes_per_token = sum(map(_bytes_per_token, cache))
        self.can_batch = caches.can_merge(cache)  # sequences are rows of one batch, or run alone

    def __call__(
        self,
        tokens: mx.array,
        cache: list[Any],
        attention_layers: AttentionLayers = "last",
        queries: int = 1,
        measure: bool = True,
    ) -> Forward:
        """Run the model on `(B, L)` token ids that follow those in the cache; nothing is computed
        before its arrays are needed.

        Args:
            tokens: ids, L of each row.
            cache: of one sequence from `make_cache`, or of B rows (see `caches`); it is updated in
                place.
            attention_layers: which layers to measure.
            queries: how many of the last positions to measure.
            measure: whether to return scores at all.
        """
        if self._quantization is not None:
            start, group_size, bits = self._quantization
            maybe_quantize_kv_cache(cache, start, group_size, bits)
        if not measure:
            return Forward(self.inner(tokens, cache=cache), ())
        logits, scores = self._measured(tokens, cache, attention_layers == "all", queries)
        if self.group is not None:
            scores = tuple(gather_heads(layer, self.group) for layer in scores)
        return Forward(logits, scores)

    def make_cache(self) -> list[Any]:
        """Return the empty cache of one sequence: mlx-lm's, one object a layer."""
        cache: list[Any] = make_prompt_cache(self.inner)
        return cache

    def quantize_cache(self, bits: int, group_size: int = 64, start: int = 0) -> None:
        """Quantize the keys and values of sequences once they have `start` tokens.

        Raises a `ValueError` if MLX cannot pack the heads so, a `NotImplementedError` if a layer
        keeps them in another kind of cache.
        """
        cache = self.make_cache()
        if any(isinstance(layer, RotatingKVCache) for layer in cache):
            raise NotImplementedError("it has sliding windows")
        if not any(type(layer) is KVCache for layer in cache):
            raise NotImplementedError("no layer has a plain key-value cache")
        maybe_quantize_kv_cache(cache, 0, group_size, bits)
        self.inner(mx.array([[0]]), cache=cache)
        self._quantization = start, group_size, bits
        self.can_batch = False

    def block_cost(self, length: int) -> float:
        """Return the time of a pass of so many tokens, in passes of one; measured once, and the
        same on all ranks."""
        if length not in self._block_costs:
            one, block = self._seconds(1), self._seconds(length)
            self._block_costs[length] = share(block / one, self.group)
        return self._block_costs[length]

    def _seconds(self, length: int) -> float:
        taken = []
        for _ in range(2):
            began = time.perf_counter()
            tokens = mx.zeros((1, length), mx.int32)
            mx.eval(self(tokens, self.make_cache(), queries=length))
            taken.append(time.perf_counter() - began)
        return min(taken)

    @property
    def dtype(self) -> mx.Dtype:
        """The type of the weights that are not packed, in which the model computes."""
        arrays: dict[str, mx.array] = dict(tree_flatten(self.inner.parameters()))
        dtypes = (array.dtype for array in arrays.values())
        return next(dtype for dtype in dtypes if mx.issubdtype(dtype, mx.floating))

    @property
    def precision(self) -> str:
        """How most weights are stored: ``"bfloat16"``, or ``"4 bits in groups of 64"``."""
        weights: Counter[str] = Counter()
        for part in self.inner.modules():
            if "scales" in part:
                form = f"{part.bits} bits in groups of {part.group_size}"
                weights[form] += part.weight.size * 32 // part.bits
            elif "weight" in part and part.weight.ndim > 1:
                weights[str(self.dtype).removeprefix("mlx.core.")] += part.weight.size
        return max(weights, key=weights.__getitem__)

    def warm_up(self) -> None:
        """Evaluate everything that passes read, and run short ones.

        Called in the thread that loaded the model: another one can then generate, and kernels are
        compiled before anybody waits for them. Rows of two lengths are computed together and alone;
        where they differ, `can_batch` becomes False.
        """
        mx.eval(_buffers(self.inner))
        rows = []
        for ids in ([0, 1], [0, 1, 0, 1, 0]):
            cache = self.make_cache()
            self(mx.array([ids[:-1]]), cache, measure=False)
            mx.eval(caches.arrays(cache))
            rows.append(cache)
        last = mx.array([[1], [0]])
        alone = self(last[:1], caches.copy(rows[0])).logits[0, -1]
        mx.eval(alone)
        if self.can_batch:
            self.can_batch = self._agrees(alone, last, rows)

    def _agrees(self, alone: mx.array, tokens: mx.array, rows: list[list[Any]]) -> bool:
        """Return whether the first of some rows has the same logits in a batch as alone."""
        try:
            together = self(tokens, caches.merge(rows)).logits[0, -1]
            difference = mx.abs(together - alone).max()
            spread = (alone.max() - alone.min()) * (1e-3 if alone.dtype == mx.float32 else 0.1)
            return bool(difference <= spread)
        except Exception:  # whatever a module that was never written for batches raises
            return False


def _bytes_per_token(cache: Any) -> int:
    if isinstance(cache, CacheList):
        return sum(map(_bytes_per_token, cache.caches))
    keys, values = getattr(cache, "keys", None), getattr(cache, "values", None)
    if not isinstance(keys, mx.array) or not isinstance(values, mx.array):
        return 0
    return (keys.nbytes + values.nbytes) // keys.shape[-2]


def _buffers(module: nn.Module) -> list[mx.array]:
    """Return the arrays of all parts of a model; `parameters` leaves out the underscored ones,
    such as the frequencies of rotary embeddings."""
    values = [
        value for part in module.modules() for value in (*part.values(), *vars(part).values())
    ]
    return [value for value in values if isinstance(value, mx.array)]
