"""A model of transformers, run by torch, with its attention measured.

The whole decode core runs on it: forks, thoughts, constraints, batches. Three things differ from
the models that MLX runs:

1. Attention is read by an attention function of our own, which transformers calls by the name
   `ATTENTION`. It computes what its ``sdpa`` does, and notes its arguments.
2. Rows of one length share a `TorchCache`. Branches of a fork copy the text before them with their
   first token, since torch's kernels read one array of keys a row.
3. Torch computes at once: logits and scores reach MLX as arrays that need no waiting.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
import torch
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from ..errors import UnsupportedModelError
from ..models.base import AttentionLayers, Forward, LanguageModel, Rows
from ..models.llama.attention import Masked
from ..models.llama.cache import Scores
from ..models.tapped.model import tapped_shape

ATTENTION = "entropix"
"""The name of the attention function in transformers."""


class _AttentionCall(NamedTuple):
    """What one call of attention computed with, of its last query."""

    query: torch.Tensor
    """`(rows, heads, 1, head_dim)`"""
    keys: torch.Tensor
    """`(rows, kv_heads, keys, head_dim)`"""
    mask: torch.Tensor | None
    """`(rows or 1, heads or 1, 1, keys)`, true where a key is seen."""
    scale: float

    def scores(self) -> mx.array | Masked:
        """Return the scores before softmax, `(rows, heads, keys)`."""
        rows, heads, _, head_dim = self.query.shape
        # As in attend_with_scores, the queries are grouped by their key head.
        grouped = self.query.reshape(rows, self.keys.shape[1], -1, head_dim) * self.scale
        found = (grouped @ self.keys.transpose(-1, -2)).reshape(rows, heads, -1)
        if self.mask is None or bool(self.mask.all()):
            return _to_mlx(found)
        return Masked(_to_mlx(found.masked_fill(~self.mask[:, :, 0], -math.inf)))


_calls: ContextVar[list[_AttentionCall] | None] = ContextVar("calls", default=None)
"""The calls of the pass that runs; None outside of one."""


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Attend as transformers' ``sdpa`` does, and note the last query."""
    calls = _calls.get()
    if calls is not None and options.get("position_bias") is None:
        mask = None if attention_mask is None else attention_mask[:, :, -1:]
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        calls.append(_AttentionCall(query[:, :, -1:], key, mask, scale))
    attended: tuple[torch.Tensor, None] = sdpa_attention_forward(
        module, query, key, value, attention_mask, scaling=scaling, **options
    )
    return attended


AttentionInterface.register(ATTENTION, _attend)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)


class TorchCache:
    """The keys and values of all layers, for rows of one length."""

    takes_blocks = False

    def __init__(self, layers: Sequence[tuple[torch.Tensor, torch.Tensor]] = ()) -> None:
        """Begin with the keys and values `(rows, kv_heads, length, head_dim)` of each layer."""
        self.inner = DynamicCache(layers) if layers else DynamicCache()
        self._shared = self.offset

    @property
    def offset(self) -> int:
        # An interrupt in the middle of a pass leaves layers with different lengths.
        return min((layer.get_seq_length() for layer in self.inner.layers), default=0)

    def trim(self, count: int) -> None:
        length = self.offset - count
        for layer in self.inner.layers:
            layer.keys, layer.values = layer.keys[:, :, :length], layer.values[:, :, :length]

    def copy(self, length: int) -> TorchCache:
        """Return a cache of at most the first `length` tokens."""
        return self._part(slice(None), slice(length))

    def share(self, step: int, rows: int) -> TorchCache:
        """Return the cache of rows that go on from the only one of this cache."""
        return TorchCache(
            [(k.expand(rows, -1, -1, -1), v.expand(rows, -1, -1, -1)) for k, v in self._layers()]
        )

    def of_rows(self, rows: Sequence[int]) -> TorchCache:
        part = self._part(list(rows), slice(None))
        part._shared = self._shared
        return part

    def commit(self, row: int, length: int, text: TorchCache) -> None:
        """Append the first `length` tokens of one row, behind those it shares, to a text."""
        own = self._part(slice(row, row + 1), slice(self._shared, self._shared + length))
        for index, (keys, values) in enumerate(own._layers()):
            text.inner.update(keys, values, index)

    def arrays(self) -> list[torch.Tensor]:
        """Return the tensors, which need not be waited for."""
        return [tensor for layer in self._layers() for tensor in layer]

    def _layers(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [(layer.keys, layer.values) for layer in self.inner.layers]

    def _part(self, rows: slice | list[int], tokens: slice) -> TorchCache:
        # Tensors are shared, not copied: a layer that grows makes new ones.
        return TorchCache(
            [(k[rows][:, :, tokens], v[rows][:, :, tokens]) for k, v in self._layers()]
        )


class TorchModel(LanguageModel):
    """A causal language model of transformers, with its attention measured."""

    takes_blocks = False

    def __init__(self, model: Any) -> None:
        """Take a model as ``AutoModelForCausalLM.from_pretrained`` returns it.

        Its attention function is `ATTENTION` until `close` is called. Where a model needs another,
        as for sinks or capped scores, it keeps its own, and attention is not measured.

        Raises:
            UnsupportedModelError: it keeps more of a text than keys and values, as a recurrent
            model.
        """
        super().__init__()
        self.inner = model
        self._before = model.config._attn_implementation
        parameters = inspect.signature(model.forward).parameters
        self._last_alone = {"logits_to_keep": 1} if "logits_to_keep" in parameters else {}
        probe, vocab_size = self._tried()
        self.config = tapped_shape(model.config.get_text_config().to_dict(), vocab_size)
        self._bytes_per_token: int = sum(tensor.nbytes for tensor in probe.arrays())

    def _tried(self) -> tuple[TorchCache, int]:
        """Choose the attention function by a pass of one token; return its cache and vocabulary."""
        reason: Exception | None = None
        for names in (("sdpa", ATTENTION), (self._before,)):
            cache = TorchCache()
            try:
                for name in names:  # "sdpa" is refused where a model needs more than it computes
                    self.inner.set_attn_implementation(name)
                logits, _ = self._run(torch.zeros((1, 1), dtype=torch.long), cache, "last")
                if cache.offset == 1:
                    return cache, logits.shape[-1]
            except Exception as error:  # whatever a model's own code stumbles over
                reason = error
        self.close()
        raise UnsupportedModelError(
            f"{type(self.inner).__name__} cannot be run: it must keep the keys and values of every"
            " layer, and nothing else, between its passes"
        ) from reason

    def close(self) -> None:
        """Give the model its own attention function back."""
        self.inner.set_attn_implementation(self._before)

    def __call__(
        self,
        tokens: mx.array,
        cache: Sequence[Any] | None = None,
        attention_layers: AttentionLayers = "last",
    ) -> Forward:
        """Run the model on `(B, L)` token ids that follow those in the cache."""
        own = self.make_cache() if cache is None else cache
        logits, scores = self._run(_to_torch(tokens), own[0], attention_layers)
        return Forward(_to_mlx(logits), tuple(scores) or (_unknown(tokens),), bool(scores))

    def step(self, groups: Sequence[Rows], attention_layers: AttentionLayers = "last") -> Forward:
        """Run the model on one token of each row, a group at a time."""
        logits, by_group = [], []
        for group in groups:
            tokens = group.tokens[:, None]
            found = self(tokens, group.layers, attention_layers)
            logits.append(found.logits)
            by_group.append(found.scores)
        by_layer: list[Scores] = list(zip(*by_group, strict=True))
        return Forward(mx.concatenate(logits), tuple(by_layer), found.attended)

    def states(
        self, tokens: mx.array, cache: Sequence[Any], attention_layers: AttentionLayers
    ) -> tuple[mx.array, tuple[Scores, ...]]:
        """Return the logits: the models of transformers differ in where their states are."""
        return self(tokens, cache, attention_layers)[:2]

    def head(self, states: mx.array) -> mx.array:
        return states

    def prefill(self, tokens: mx.array, cache: Sequence[Any]) -> None:
        self._run(_to_torch(tokens), cache[0], "last", **self._last_alone)

    def make_cache(self) -> list[TorchCache]:
        """Return the empty cache of a text: one entry, which holds all layers."""
        return [TorchCache()]

    @property
    def dtype(self) -> mx.Dtype:
        dtype: mx.Dtype = getattr(mx, str(self.inner.dtype).removeprefix("torch."))
        return dtype

    @property
    def bytes_per_token(self) -> int:
        return self._bytes_per_token

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _run(
        self, tokens: torch.Tensor, cache: TorchCache, layers: AttentionLayers, **options: Any
    ) -> tuple[torch.Tensor, list[mx.array | Masked]]:
        """Return the logits `(rows, L, vocab)` and the last query's scores of the layers."""
        calls: list[_AttentionCall] = []
        before = _calls.set(calls)
        try:
            found = self.inner(
                tokens.to(self.inner.device), past_key_values=cache.inner, use_cache=True, **options
            )
        finally:
            _calls.reset(before)
        wanted = calls if layers == "all" else calls[-1:]
        return found.logits, [call.scores() for call in wanted]


def _to_torch(tokens: mx.array) -> torch.Tensor:
    return torch.from_numpy(np.array(tokens, dtype=np.int64))


def _to_mlx(tensor: torch.Tensor) -> mx.array:
    return mx.array(tensor.to("cpu", torch.float32).numpy())


def _unknown(tokens: mx.array) -> mx.array:
    """Return what stands for the attention of a model where it cannot be read."""
    return mx.zeros((tokens.shape[0], 1, 1))
