"""Any model of mlx-lm, run by mlx-lm's own code, with its attention measured.

`Tap` reads the attention, `History` takes tokens back; here the two are put together into what the
decode core asks of a model. Rows are computed one by one, the tokens of a run in one pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.models.cache import CacheList, KVCache, RotatingKVCache, make_prompt_cache
from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchLinear

from ..base import (
    AttentionLayers,
    Forward,
    LanguageModel,
    Rows,
)
from ..config import ModelShape
from ..llama.attention import Masked
from ..llama.cache import Scores
from .caches import Histories, History, KVPacking
from .tap import Attention, Tap

_EXPERTS = (SwitchLinear, QuantizedSwitchLinear)
CONTEXT_UNSTATED = 32768
"""Tokens of context where a configuration states none, as of a recurrent model."""

_NAMES = {
    "hidden_size": ("hidden_size", "n_embd", "d_model", "dim", "hidden_dim", "model_dim"),
    "intermediate_size": ("intermediate_size", "n_inner", "ffn_hidden_size", "mlp_hidden_size"),
    "num_hidden_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "num_key_value_heads": ("num_key_value_heads", "n_kv_heads", "num_kv_heads"),
    "max_position_embeddings": (
        *("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_seq_length"),
        *("max_sequence_length", "seq_length", "max_context_length", "model_max_length"),
    ),
}
"""What architectures call the same size."""


def tapped_shape(config: Mapping[str, Any], vocab_size: int) -> ModelShape:
    """Return the shape that a ``config.json`` states, of its language part if it has several."""
    text = config.get("text_config")
    stated = {**config, **text} if isinstance(text, Mapping) else config
    found = {"max_position_embeddings": CONTEXT_UNSTATED}
    for field, names in _NAMES.items():
        values = [stated[name] for name in names if type(stated.get(name)) is int]
        if values and values[0] > 0:
            found[field] = values[0]
    if "num_attention_heads" in found:
        found.setdefault("num_key_value_heads", found["num_attention_heads"])
    return ModelShape(model_type=str(config.get("model_type")), vocab_size=vocab_size, **found)


class TappedModel(LanguageModel):
    """A model of mlx-lm, with its attention measured."""

    def __init__(self, model: nn.Module, config: Mapping[str, Any]) -> None:
        """Take over a model as mlx-lm builds it; its weights need not have been read."""
        super().__init__()
        self.inner = model
        self.mixes_experts = any(isinstance(part, _EXPERTS) for part in model.modules())
        self._tap = Tap(model)
        self.config = tapped_shape(config, self._tried())
        self._packing: KVPacking | None = None

    def _tried(self) -> int:
        """Learn what a pass is like, and return how many logits it has.

        MLX knows the shape of a result before it computes it, and nothing is computed here.
        """
        probe = self._new_cache()
        logits, calls = self._tap.run(lambda: self.inner(mx.array([[0]]), cache=probe), every=True)
        self.attention_heads = tuple(call.shape[1] for call in calls)
        """Heads of each call of attention in a pass that can be measured; empty without any."""
        self._bytes_per_token = sum(map(_bytes_per_token, probe))
        self.takes_blocks = History(probe).takes_blocks  # a recurrent layer's cannot be cut
        return int(logits.shape[-1])

    def __call__(
        self,
        tokens: mx.array,
        cache: Sequence[Any] | None = None,
        attention_layers: AttentionLayers = "last",
    ) -> Forward:
        """Run the model on `(1, L)` token ids that follow those in the cache."""
        history = (cache or self.make_cache())[0].rows[0]
        logits, calls = self._advance(history, tokens, attention_layers)
        scores = tuple(calls) or (_nothing(),)
        return Forward(logits, scores, attended=bool(calls))

    def step(self, groups: Sequence[Rows], attention_layers: AttentionLayers = "last") -> Forward:
        """Run the model on one token of each row, row by row; on a block, in one pass."""
        logits: list[mx.array] = []
        by_group, attended = [], True
        for group in groups:
            of_rows = []
            rows: Sequence[History] = group.layers[0].rows  # type: ignore[attr-defined]
            for history, tokens in zip(rows, group.tokens.reshape(len(rows), -1), strict=True):
                size, read = tokens.size, self._in_turn(tokens[None], logits)
                found, calls = self._advance(history, read, attention_layers, size)
                logits.append(found.swapaxes(0, 1))
                of_rows.append(calls or [_nothing(size)])
                attended = attended and bool(calls)
            by_group.append([_together(calls) for calls in zip(*of_rows, strict=True)])
        together = mx.concatenate(logits) if len(logits) > 1 else logits[0]
        by_layer: list[Scores] = list(zip(*by_group, strict=True))
        return Forward(together, tuple(by_layer), attended)

    def states(
        self, tokens: mx.array, cache: Sequence[Any], attention_layers: AttentionLayers
    ) -> tuple[mx.array, tuple[Scores, ...]]:
        """Return the logits: mlx-lm's models do not hand out their states."""
        history: History = cache[0].rows[0]

        def run(caches: list[Any]) -> mx.array:
            logits: mx.array = self.inner(tokens, cache=caches)
            return logits

        return history.advance(tokens.shape[1], run), ()

    def head(self, states: mx.array) -> mx.array:
        return states

    def prefill(self, tokens: mx.array, cache: Sequence[Any]) -> None:
        """Put `(1, L)` tokens into a cache; attention is not measured."""
        self.states(tokens, cache, "last")

    def make_cache(self) -> list[Histories]:
        """Return the empty cache of a text: one entry, which holds the caches of all layers."""
        return [Histories([History(self._new_cache(), packing=self._packing)])]

    def take_cache(self, cache: Sequence[Any]) -> list[Histories]:
        """Return the cache of a text from one of mlx-lm's, or from `make_cache` as it is."""
        if isinstance(cache[0], Histories):
            return list(cache)
        length = max(_length(entry) for entry in cache)
        return [Histories([History(cache, length, packing=self._packing)])]

    def stored_cache(self, cache: Sequence[Any]) -> list[Any]:
        return list(cache[0].rows[0].caches)

    def restored_cache(self, caches: Sequence[Any], length: int) -> list[Histories]:
        [histories] = self.make_cache()
        histories.rows[0].restore(caches, length)
        return [histories]

    def quantize_cache(self, bits: int, group_size: int, start: int) -> None:
        """Quantize the keys and values of new texts after so many tokens; see `KVPacking`.

        Raises:
            ValueError: MLX or a layer of this model cannot have them so.
            NotImplementedError: a layer keeps them in another kind of cache.
        """
        probe = self._new_cache()
        self.inner(mx.array([[0]]), cache=probe)
        if any(isinstance(cache, RotatingKVCache) for cache in probe):
            raise NotImplementedError("it has sliding windows")
        packed = [
            cache.to_quantized(group_size, bits) if type(cache) is KVCache else cache
            for cache in probe
        ]
        self.inner(mx.array([[0]]), cache=packed)
        self._packing = KVPacking(bits, group_size, start)

    @property
    def dtype(self) -> mx.Dtype:
        arrays: dict[str, mx.array] = dict(tree_flatten(self.inner.parameters()))
        dtypes = (array.dtype for array in arrays.values())
        return next(dtype for dtype in dtypes if mx.issubdtype(dtype, mx.floating))

    @property
    def bytes_per_token(self) -> int:
        """What a token takes in the caches that grow with the text."""
        return self._bytes_per_token

    def _new_cache(self) -> list[Any]:
        caches: list[Any] = make_prompt_cache(self.inner)
        return caches

    def _in_turn(self, tokens: mx.array, before: Sequence[mx.array]) -> mx.array:
        """Return a row's tokens; `before` are the logits of the rows that precede it."""
        return tokens

    def _advance(
        self, history: History, tokens: mx.array, layers: AttentionLayers, measured: int = 1
    ) -> tuple[mx.array, list[Attention]]:
        """Return the logits `(1, L, vocab)`, and what the last tokens looked at."""
        every = layers == "all"

        def run(caches: list[Any]) -> tuple[mx.array, list[Attention]]:
            return self._tap.run(lambda: self.inner(tokens, cache=caches), every, measured)

        return history.advance(tokens.shape[1], run)


def _nothing(tokens: int = 1) -> Attention:
    """Return what stands for the attention of a model that has none."""
    nothing = mx.zeros((tokens, 1, 1))
    return nothing if tokens == 1 else Masked(nothing)


def _together(calls: Sequence[Attention]) -> mx.array | Masked:
    if len(calls) == 1:
        return calls[0]
    joined = mx.concatenate([one.scores if isinstance(one, Masked) else one for one in calls])
    return Masked(joined) if any(isinstance(one, Masked) for one in calls) else joined


def _bytes_per_token(cache: Any) -> int:
    if isinstance(cache, CacheList):
        return sum(map(_bytes_per_token, cache.caches))
    keys, values = getattr(cache, "keys", None), getattr(cache, "values", None)
    if not isinstance(keys, mx.array) or not isinstance(values, mx.array):
        return 0
    return (keys.nbytes + values.nbytes) // keys.shape[-2]


def _length(cache: Any) -> int:
    if isinstance(cache, CacheList):
        return max(map(_length, cache.caches), default=0)
    return int(getattr(cache, "offset", 0))
