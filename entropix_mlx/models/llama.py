"""The Llama family, with attention that also returns its scores.

Read it from the bottom up, or follow a token: `Model` looks up its embedding, each `Block` adds the
outputs of attention and of the feed-forward network to that state, and the head turns the last
state into logits. Attributes are named as the keys of a Hugging Face checkpoint, so that its
weights load without renaming.

Shapes: B batch, L query length, H query heads, KV key/value heads, D head dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.activations import swiglu
from mlx_lm.models.cache import KVCache

from .cache import LayerCache, Scores, attend_cached
from .config import LlamaConfig
from .rope import make_rope

AttentionLayers = Literal["last", "all"]
"""Which layers' attention is measured. The published sampler measures the last one."""


class Forward(NamedTuple):
    """The output of a forward pass."""

    logits: mx.array
    """`(B, L, vocab)`"""
    scores: tuple[Scores, ...]
    """Of each measured layer, the last query's attention scores `(B, H, keys)`; where rows come in
    groups (`cache.RowGroups`), those of each group."""


class Attention(nn.Module):
    """Grouped-query attention with rotary position embeddings."""

    def __init__(self, config: LlamaConfig) -> None:
        """Make the projections of one layer."""
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


class MLP(nn.Module):
    """The gated feed-forward network."""

    def __init__(self, config: LlamaConfig) -> None:
        """Make the projections of one layer."""
        super().__init__()
        hidden, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.gate_proj = nn.Linear(hidden, inner, bias=bias)
        self.up_proj = nn.Linear(hidden, inner, bias=bias)
        self.down_proj = nn.Linear(inner, hidden, bias=bias)

    def __call__(self, x: mx.array) -> mx.array:
        """Map `(B, L, hidden)` to the same shape."""
        return self.down_proj(swiglu(self.gate_proj(x), self.up_proj(x)))


class Block(nn.Module):
    """One layer: attention, then the feed-forward network.

    Each gets the normalised state, and its output is added to the state (pre-norm residuals).
    """

    def __init__(self, config: LlamaConfig) -> None:
        """Make one layer."""
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

    def __init__(self, config: LlamaConfig) -> None:
        """Make the embedding and all layers."""
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = [Block(config) for _ in range(config.num_hidden_layers)]
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def __call__(
        self, tokens: mx.array, cache: Sequence[LayerCache], measured: range
    ) -> tuple[mx.array, tuple[Scores, ...]]:
        """Return the last states `(B, L, hidden)` and the scores of the measured layers."""
        x = self.embed_tokens(tokens)
        mask = "causal" if tokens.shape[1] > 1 else None
        collected = []
        for number, (layer, layer_cache) in enumerate(zip(self.layers, cache, strict=True)):
            x, scores = layer(x, mask, layer_cache, with_scores=number in measured)
            if scores is not None:
                collected.append(scores)
        return self.norm(x), tuple(collected)


class Model(nn.Module):
    """A causal language model of the Llama family."""

    def __init__(self, config: LlamaConfig) -> None:
        """Make a model with random weights; `loading` replaces them."""
        super().__init__()
        self.config = config
        self.model = Decoder(config)
        if not config.tie_word_embeddings:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def __call__(
        self,
        tokens: mx.array,
        cache: Sequence[LayerCache] | None = None,
        attention_layers: AttentionLayers = "last",
    ) -> Forward:
        """Run the model on `(B, L)` token ids that follow those in the cache.

        Args:
            tokens: ids.
            cache: from `make_cache`, updated in place; None starts from nothing and keeps nothing.
                Rows that share a prefix or come in groups take one token each, L = 1.
            attention_layers: which layers' scores to return.
        """
        layers = len(self.model.layers)
        measured = range(layers) if attention_layers == "all" else range(layers - 1, layers)
        states, scores = self.model(tokens, cache or self.make_cache(), measured)
        if self.config.tie_word_embeddings:
            return Forward(self.model.embed_tokens.as_linear(states), scores)
        return Forward(self.lm_head(states), scores)

    def make_cache(self) -> list[KVCache]:
        """Return an empty KV cache: one entry a layer."""
        return [KVCache() for _ in self.model.layers]
