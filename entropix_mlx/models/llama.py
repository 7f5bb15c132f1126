"""Our own port of the Llama family, with attention that also returns its scores.

The path of a token: `Model` looks up its embedding, each `Block` adds the outputs of attention and
of the feed-forward network to that state, and the head turns the last state into logits. Attributes
are named as the keys of a checkpoint, so that weights load without renaming; arguments, caches and
rotary embeddings are mlx-lm's, whose own classes the tests compare with these.

Shapes: B batch, L query length, H query heads, KV key/value heads, D head dimension.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import llama, qwen2, qwen3
from mlx_lm.models.activations import swiglu
from mlx_lm.models.base import create_attention_mask, scaled_dot_product_attention
from mlx_lm.models.rope_utils import initialize_rope
from mlx_lm.utils import _get_classes

from .tap import attention_scores

ARGUMENTS: Mapping[str, type[Any]] = {
    "llama": llama.ModelArgs,
    "mistral": llama.ModelArgs,
    "qwen2": qwen2.ModelArgs,
    "qwen3": qwen3.ModelArgs,
}


def ports(config: Mapping[str, Any]) -> bool:
    """Return whether the port computes such a model; sliding windows are mlx-lm's."""
    layer_types = config.get("layer_types") or ()
    return config.get("model_type") in ARGUMENTS and "sliding_attention" not in layer_types


def classes(config: Mapping[str, Any]) -> tuple[type[nn.Module], type[Any]]:
    """Return the classes of a model and of its arguments, as mlx-lm's `load_model` asks for: the
    port's where it computes the model, else mlx-lm's own."""
    if not ports(config):
        own: tuple[type[nn.Module], type[Any]] = _get_classes(dict(config))
        return own
    return Model, ARGUMENTS[config["model_type"]]


class Attention(nn.Module):
    """Grouped-query attention with rotary position embeddings."""

    def __init__(self, args: Any) -> None:
        super().__init__()
        hidden, heads, kv_heads = args.hidden_size, args.num_attention_heads, _kv_heads(args)
        self.head_dim = getattr(args, "head_dim", None) or hidden // heads
        self.scale = self.head_dim**-0.5
        bias = getattr(args, "attention_bias", False)
        qkv_bias = bias or args.model_type == "qwen2"
        self.q_proj = nn.Linear(hidden, heads * self.head_dim, bias=qkv_bias)
        self.k_proj = nn.Linear(hidden, kv_heads * self.head_dim, bias=qkv_bias)
        self.v_proj = nn.Linear(hidden, kv_heads * self.head_dim, bias=qkv_bias)
        self.o_proj = nn.Linear(heads * self.head_dim, hidden, bias=bias)
        if args.model_type == "qwen3":
            self.q_norm = nn.RMSNorm(self.head_dim, eps=args.rms_norm_eps)
            self.k_norm = nn.RMSNorm(self.head_dim, eps=args.rms_norm_eps)
        self.rope = initialize_rope(
            self.head_dim,
            args.rope_theta,
            getattr(args, "rope_traditional", False),
            args.rope_scaling,
            args.max_position_embeddings,
        )

    def __call__(
        self, x: mx.array, mask: Any, cache: Any, measured: int
    ) -> tuple[mx.array, mx.array | None]:
        """Return the output `(B, L, hidden)`, and the scores of the last `measured` queries."""
        batch, length, _ = x.shape

        def by_head(projected: mx.array) -> mx.array:
            return projected.reshape(batch, length, -1, self.head_dim)

        queries, keys = by_head(self.q_proj(x)), by_head(self.k_proj(x))
        if "q_norm" in self:
            queries, keys = self.q_norm(queries), self.k_norm(keys)
        queries = self.rope(queries.swapaxes(1, 2), offset=cache.offset)  # (B, H, L, D)
        keys = self.rope(keys.swapaxes(1, 2), offset=cache.offset)  # (B, KV, L, D)
        values = by_head(self.v_proj(x)).swapaxes(1, 2)
        keys, values = cache.update_and_fetch(keys, values)
        scores = None
        if measured:
            packing = (cache.group_size, cache.bits) if hasattr(cache, "bits") else None
            last = queries[:, :, -measured:]
            scores = attention_scores(last, keys, self.scale, mask, packing)
        output = scaled_dot_product_attention(queries, keys, values, cache, self.scale, mask)
        return self.o_proj(output.swapaxes(1, 2).reshape(batch, length, -1)), scores


class MLP(nn.Module):
    """The gated feed-forward network."""

    def __init__(self, args: Any) -> None:
        super().__init__()
        hidden, inner = args.hidden_size, args.intermediate_size
        bias = getattr(args, "mlp_bias", False)
        self.gate_proj = nn.Linear(hidden, inner, bias=bias)
        self.up_proj = nn.Linear(hidden, inner, bias=bias)
        self.down_proj = nn.Linear(inner, hidden, bias=bias)

    def __call__(self, x: mx.array) -> mx.array:
        return self.down_proj(swiglu(self.gate_proj(x), self.up_proj(x)))


class Block(nn.Module):
    """One layer: attention, then the feed-forward network; each gets the normalised state, and its
    output is added to the state (pre-norm residuals)."""

    def __init__(self, args: Any) -> None:
        super().__init__()
        self.self_attn = Attention(args)
        self.mlp = MLP(args)
        self.input_layernorm = nn.RMSNorm(args.hidden_size, eps=args.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(args.hidden_size, eps=args.rms_norm_eps)

    def __call__(
        self, x: mx.array, mask: Any, cache: Any, measured: int
    ) -> tuple[mx.array, mx.array | None]:
        """Map `(B, L, hidden)` to the same shape; also return the scores, as `Attention` does."""
        attended, scores = self.self_attn(self.input_layernorm(x), mask, cache, measured)
        x = x + attended
        return x + self.mlp(self.post_attention_layernorm(x)), scores


class Decoder(nn.Module):
    """Everything below the output head; the ``model.`` of a checkpoint's keys."""

    def __init__(self, args: Any) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(args.vocab_size, args.hidden_size)
        self.layers = [Block(args) for _ in range(args.num_hidden_layers)]
        self.norm = nn.RMSNorm(args.hidden_size, eps=args.rms_norm_eps)

    def __call__(
        self, tokens: mx.array, cache: Sequence[Any], every: bool, queries: int
    ) -> tuple[mx.array, tuple[mx.array, ...]]:
        """Return the last states `(B, L, hidden)` and the scores of the measured layers."""
        x = self.embed_tokens(tokens)
        mask = create_attention_mask(x, cache[0])
        collected = []
        for layer, layer_cache in zip(self.layers, cache, strict=True):
            measured = queries if every or layer is self.layers[-1] else 0
            x, scores = layer(x, mask, layer_cache, measured)
            if scores is not None:
                collected.append(scores)
        return self.norm(x), tuple(collected)


class Model(nn.Module):
    """A causal language model of the Llama family."""

    def __init__(self, args: Any) -> None:
        """Build the layers; `args` are mlx-lm's arguments of the architecture."""
        super().__init__()
        self.args = args
        self.model = Decoder(args)
        if not args.tie_word_embeddings:
            self.lm_head = nn.Linear(args.hidden_size, args.vocab_size, bias=False)

    def __call__(self, tokens: mx.array, cache: Sequence[Any]) -> mx.array:
        """Return the logits `(B, L, vocab)` of token ids that follow those in the cache."""
        return self.with_scores(tokens, cache, every=False, queries=0)[0]

    def with_scores(
        self, tokens: mx.array, cache: Sequence[Any], every: bool, queries: int
    ) -> tuple[mx.array, tuple[mx.array, ...]]:
        """Return the logits and the scores of the last layer or of every one, as `Tap` does."""
        states, scores = self.model(tokens, cache, every, queries)
        if self.args.tie_word_embeddings:
            return self.model.embed_tokens.as_linear(states), scores
        return self.lm_head(states), scores

    def sanitize(self, weights: dict[str, mx.array]) -> dict[str, mx.array]:
        """Return a checkpoint's arrays without those that are computed or shared here."""
        tied = ("lm_head.weight",) if self.args.tie_word_embeddings else ()
        return {
            name: array
            for name, array in weights.items()
            if not name.endswith("rotary_emb.inv_freq") and name not in tied
        }

    @property
    def layers(self) -> list[Block]:
        layers: list[Block] = self.model.layers
        return layers


def _kv_heads(args: Any) -> int:
    return int(args.num_key_value_heads or args.num_attention_heads)
