"""The Llama family, with attention that also returns its scores.

The path of a token: `Model` looks up its embedding, each `Block` adds the outputs of attention and
of the feed-forward network to that state, and the head turns the last state into logits. Attributes
are named as the keys of a Hugging Face checkpoint, so that its weights load without renaming.

Shapes: B batch, L query length, H query heads, KV key/value heads, D head dimension.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.activations import swiglu
from mlx_lm.models.cache import KVCache

from ...errors import UnsupportedModelError
from ..base import AttentionLayers, Forward, LanguageModel, Rows
from ..config import Frequencies, LlamaConfig, frequencies
from .cache import BlockCache, LayerCache, RowGroups, Scores, attend_cached


class Attention(nn.Module):
    """Grouped-query attention with rotary position embeddings."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.scale = config.head_dim**-0.5
        width = config.num_attention_heads * config.head_dim
        kv_width = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, width, bias=config.qkv_bias)
        self.k_proj = nn.Linear(config.hidden_size, kv_width, bias=config.qkv_bias)
        self.v_proj = nn.Linear(config.hidden_size, kv_width, bias=config.qkv_bias)
        self.o_proj = nn.Linear(width, config.hidden_size, bias=config.attention_bias)
        if config.qk_norm:
            self.q_norm = nn.RMSNorm(config.head_dim, eps=config.rms_norm_eps)
            self.k_norm = nn.RMSNorm(config.head_dim, eps=config.rms_norm_eps)
        self.rope = make_rope(config)

    def __call__(
        self, x: mx.array, mask: Any, cache: LayerCache, with_scores: bool
    ) -> tuple[mx.array, Scores | None]:
        """Return the output `(B, L, hidden)`, and the last query's scores if asked for."""
        batch, length, _ = x.shape

        def by_head(projected: mx.array) -> mx.array:
            return projected.reshape(batch, length, -1, self.head_dim).swapaxes(1, 2)

        queries, keys = by_head(self.q_proj(x)), by_head(self.k_proj(x))
        if "q_norm" in self:
            queries, keys = self.q_norm(queries), self.k_norm(keys)
        queries = self.rope(queries, offset=cache.offset)
        keys = self.rope(keys, offset=cache.offset)
        values = by_head(self.v_proj(x))
        output, scores = attend_cached(cache, queries, keys, values, self.scale, mask, with_scores)
        return self.o_proj(output.swapaxes(1, 2).reshape(batch, length, -1)), scores


def make_rope(config: LlamaConfig) -> nn.Module:
    """Return the rotary embedding of a model's attention.

    Raises:
        ArithmeticError, ValueError: as for `frequencies`.
    """
    scaling = config.rope_scaling
    if scaling is None or scaling["rope_type"] in ("linear", "dynamic"):
        # MLX computes plain frequencies itself, so there is nothing to read from memory.
        scale = 1 / scaling["factor"] if scaling and scaling["rope_type"] == "linear" else 1.0
        return nn.RoPE(config.head_dim, config.rope_traditional, config.rope_theta, scale)
    found = frequencies(config.head_dim, config.rope_theta, scaling)
    return ScaledRoPE(config.head_dim, config.rope_traditional, found)


class ScaledRoPE(nn.Module):
    """A rotary embedding with frequencies of its own."""

    def __init__(self, dims: int, traditional: bool, found: Frequencies) -> None:
        """Take the frequencies by which the first `dims` numbers of a head are turned."""
        super().__init__()
        self.dims = dims
        self.traditional = traditional
        self.attention_factor = found.attention_factor
        # MLX divides by what it calls freqs. The underscore keeps the array out of the parameters.
        self._freqs = mx.array([1 / turn if turn else math.inf for turn in found.turns])

    def __call__(self, x: mx.array, offset: int | mx.array = 0) -> mx.array:
        """Turn `(B, heads, L, head_dim)`, whose first position is `offset`."""
        if self.attention_factor != 1.0:
            x = x.at[..., : self.dims].multiply(self.attention_factor)
        return mx.fast.rope(
            x,
            self.dims,
            traditional=self.traditional,
            base=None,
            scale=1.0,
            offset=offset,
            freqs=self._freqs,
        )


class MLP(nn.Module):
    """The gated feed-forward network."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        hidden, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.gate_proj = nn.Linear(hidden, inner, bias=bias)
        self.up_proj = nn.Linear(hidden, inner, bias=bias)
        self.down_proj = nn.Linear(inner, hidden, bias=bias)

    def __call__(self, x: mx.array) -> mx.array:
        return self.down_proj(swiglu(self.gate_proj(x), self.up_proj(x)))


class Block(nn.Module):
    """One layer: attention, then the feed-forward network.

    Each gets the normalised state, and its output is added to the state (pre-norm residuals).
    """

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = MLP(config)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def __call__(
        self, x: mx.array, mask: Any, cache: LayerCache, with_scores: bool
    ) -> tuple[mx.array, Scores | None]:
        """Map `(B, L, hidden)` to the same shape; also the scores if asked for."""
        attended, scores = self.self_attn(self.input_layernorm(x), mask, cache, with_scores)
        x = x + attended
        return x + self.mlp(self.post_attention_layernorm(x)), scores


class Decoder(nn.Module):
    """Everything below the output head; the ``model.`` of a checkpoint's keys."""

    def __init__(
        self, config: LlamaConfig, make_block: Callable[[LlamaConfig], Block] = Block
    ) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = [make_block(config) for _ in range(config.num_hidden_layers)]
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def __call__(
        self, tokens: mx.array, cache: Sequence[LayerCache], measured: range
    ) -> tuple[mx.array, tuple[Scores, ...]]:
        """Return the last states `(B, L, hidden)` and the scores of the measured layers."""
        x = self.embed(tokens)
        mask = "causal" if tokens.shape[1] > 1 else None
        collected = []
        for number, (layer, layer_cache) in enumerate(zip(self.layers, cache, strict=True)):
            x, scores = layer(x, mask, layer_cache, with_scores=number in measured)
            if scores is not None:
                collected.append(scores)
        return self.norm(x), tuple(collected)

    def embed(self, tokens: mx.array) -> mx.array:
        states: mx.array = self.embed_tokens(tokens)
        return states


class Model(LanguageModel):
    """A causal language model of the Llama family."""

    measures_blocks = True

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config: LlamaConfig = config
        self.own_shape = config
        """The shape of the part that is in this process, where a model is split."""
        self.model = Decoder(config)
        if not config.tie_word_embeddings:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def __call__(
        self,
        tokens: mx.array,
        cache: Sequence[Any] | None = None,
        attention_layers: AttentionLayers = "last",
    ) -> Forward:
        """Run the model on `(B, L)` ids; L is 1 where rows share a prefix or come in groups."""
        return self._forward(tokens, cache or self.make_cache(), attention_layers)

    def states(
        self, tokens: mx.array, cache: Sequence[LayerCache], attention_layers: AttentionLayers
    ) -> tuple[mx.array, tuple[Scores, ...]]:
        """Return the last states `(B, L, hidden)`, and scores as in `Forward`."""
        layers = len(self.model.layers)
        measured = range(layers) if attention_layers == "all" else range(layers - 1, layers)
        states, scores = self.model(tokens, cache, measured)
        return states, scores

    def _forward(
        self, tokens: mx.array, cache: Sequence[LayerCache], attention_layers: AttentionLayers
    ) -> Forward:
        # Not by `self.states`: rank 0 of a group orders a whole pass from the others at once.
        states, scores = Model.states(self, tokens, cache, attention_layers)
        return Forward(self._logits(states), scores)

    def head(self, states: mx.array) -> mx.array:
        return self._logits(states)

    def _logits(self, states: mx.array) -> mx.array:
        if self.config.tie_word_embeddings:
            logits: mx.array = self.model.embed_tokens.as_linear(states)
            return logits
        return self.lm_head(states)

    def step(self, groups: Sequence[Rows], attention_layers: AttentionLayers = "last") -> Forward:
        """Run the model on one token of each row; attention goes group by group."""
        caches: list[Sequence[Any]] = [
            [BlockCache(layer) for layer in rows.layers] if rows.block else rows.layers
            for rows in groups
        ]
        if len(groups) == 1:
            ((_, tokens, block),) = groups
            ids = tokens[None] if block else tokens[:, None]
            return self._forward(ids, caches[0], attention_layers)
        sizes = [rows.tokens.size for rows in groups]
        at = mx.array([offset for rows in groups for offset in rows.offsets(rows.layers[0].offset)])
        cache: list[LayerCache] = [
            RowGroups(of_layer, sizes, at) for of_layer in zip(*caches, strict=True)
        ]
        tokens = mx.concatenate([rows.tokens for rows in groups])
        return self._forward(tokens[:, None], cache, attention_layers)

    def make_cache(self) -> list[KVCache]:
        return [KVCache() for _ in self.model.layers]

    def take_cache(self, cache: Sequence[Any]) -> list[Any]:
        """Return the cache of a text from one of mlx-lm's.

        Raises:
            UnsupportedModelError: it is another model's, or quantized.
        """
        if len(cache) != len(self.model.layers) or not all(type(c) is KVCache for c in cache):
            raise UnsupportedModelError(
                "this prompt cache is another model's, or quantized: the port of the Llama family"
                " takes a KVCache a layer (give --kv-bits, and mlx-lm runs the model)"
            )
        return list(cache)

    @property
    def dtype(self) -> mx.Dtype:
        return self.model.norm.weight.dtype

    @property
    def bytes_per_token(self) -> int:
        """The size of the keys and values of one token in all layers, in this process."""
        width = self.own_shape.num_key_value_heads * self.own_shape.head_dim
        return int(2 * self.own_shape.num_hidden_layers * width * self.dtype.size)


def own_model(model: LanguageModel, purpose: str) -> Model:
    """Return a model of the Llama family, for a purpose that needs to look inside it.

    Raises:
        UnsupportedModelError: it is another one, which mlx-lm computes.
    """
    if isinstance(model, Model):
        return model
    raise UnsupportedModelError(
        f"{purpose} reads Llama-shaped models only, and this one is {model.config.model_type}:"
        " give another model"
    )
