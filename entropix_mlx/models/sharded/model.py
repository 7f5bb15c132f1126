"""The Llama family on several machines: each rank computes some of the heads (tensor parallelism).

    rank 0   heads 0–2   feed-forward 0–511     tokens 0–16383  ┐
    rank 1   heads 3–5   feed-forward 512–1023  tokens …        ├ all ranks have all states
    rank 2   heads 6–8   feed-forward …         tokens …        ┘

A layer splits as in Megatron-LM (arXiv 1909.08053): projections into heads and into the
feed-forward network keep some of their outputs, those out of them some of their inputs, and the
outputs of the latter are summed over the ranks. The embedding and the head keep some tokens of the
vocabulary, and logits are gathered.

Attention is measured over all heads, so the scores of the others' are gathered, for all measured
layers and rows of a pass at once. Logits and scores then have the same bits on every rank, and with
them whatever is measured, planned and drawn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from ...distributed.group import Group
from ...errors import UnsupportedModelError
from ..base import AttentionLayers, LanguageModel
from ..config import LlamaConfig
from ..llama.attention import AttentionQueries, Masked, RowScores
from ..llama.cache import LayerCache, Scores
from ..llama.model import Block, Decoder, Model
from ..tapped.caches import Histories, History
from ..tapped.model import TappedModel
from ..tapped.tap import Attention
from .vocabulary import Vocabulary, share_vocabulary, token_range


def share_of(config: LlamaConfig, rank: int, size: int) -> LlamaConfig:
    """Return the shape of what one rank computes.

    Args:
        config: the model's; see `fits` for what must divide.
        rank: from 0.
        size: ranks in all.
    """
    return replace(
        config,
        vocab_size=len(token_range(config.vocab_size, rank, size)),
        intermediate_size=config.intermediate_size // size,
        num_attention_heads=config.num_attention_heads // size,
        num_key_value_heads=config.num_key_value_heads // size,
    )


def fits(config: LlamaConfig, size: int) -> bool:
    """Tell whether a model can be split over so many ranks: its heads and its width must divide."""
    return (
        config.num_key_value_heads % size == 0
        and config.intermediate_size % size == 0
        and len(token_range(config.vocab_size, size - 1, size)) > 0
    )


def check_fits(config: LlamaConfig, size: int, where: object) -> None:
    """Check that a model can be split.

    Raises:
        UnsupportedModelError: it cannot; the message says over how many ranks it can.
    """
    if fits(config, size):
        return
    sizes = [n for n in range(2, config.num_key_value_heads + 1) if fits(config, n)]
    able = f"over {' or '.join(map(str, sizes))} ranks" if sizes else "not at all"
    raise UnsupportedModelError(
        f"{where}: {config.num_attention_heads} heads over {config.num_key_value_heads} key heads,"
        f" and a feed-forward width of {config.intermediate_size}, cannot be split over {size}"
        f" ranks: this model can be split {able}, or give --mode data, and each rank holds all of"
        " it"
    )


class ShardedBlock(Block):
    """One layer, of which this rank computes some heads and a part of the feed-forward network."""

    def __init__(self, config: LlamaConfig, group: Group) -> None:
        """Make one layer; `config` is this rank's share."""
        super().__init__(config)
        self._group = group

    def __call__(
        self, x: mx.array, mask: Any, cache: LayerCache, with_scores: bool
    ) -> tuple[mx.array, Scores | None]:
        """Map `(B, L, hidden)` to the same shape; also the scores of this rank's heads."""
        attended, scores = self.self_attn(self.input_layernorm(x), mask, cache, with_scores)
        x = x + self._group.total(attended)
        return x + self._group.total(self.mlp(self.post_attention_layernorm(x))), scores


class ShardedDecoder(Decoder):
    """Everything below the head."""

    def __init__(self, config: LlamaConfig, vocabulary: Vocabulary, group: Group) -> None:
        """Make the embedding of some tokens, and all layers; `config` is this rank's share."""
        super().__init__(config, partial(ShardedBlock, group=group))
        self._group = group
        self._vocabulary = vocabulary

    def __call__(
        self, tokens: mx.array, cache: Sequence[LayerCache], measured: range
    ) -> tuple[mx.array, tuple[Scores, ...]]:
        """Return the last states `(B, L, hidden)`, and the scores of all heads."""
        states, scores = super().__call__(tokens, cache, measured)
        return of_all_heads(states, scores, self._group)

    def embed(self, tokens: mx.array) -> mx.array:
        """Return the first states: those of the tokens that others have are 0 in this rank's."""
        leaders = self._group.leaders(tokens.astype(mx.int32))
        return self._vocabulary.embedded(self.embed_tokens, leaders)


class Share(LanguageModel):
    """What a rank computes of a model."""

    group: Group
    """The ranks that compute it together."""

    def take_cache(self, cache: Sequence[Any]) -> list[Any]:
        """Refuse a cache of mlx-lm's.

        Raises:
            UnsupportedModelError: always: it holds the keys of all heads.
        """
        raise UnsupportedModelError(
            "a prompt cache holds the keys of all heads, and here each rank has some of them: leave"
            " it out, or use one machine"
        )

    def least(self, number: int) -> int:
        """Return the smallest of the numbers of all ranks."""
        return self.group.least(number)


class ShardedModel(Share, Model):
    """This rank's share of a model of the Llama family."""

    def __init__(self, config: LlamaConfig, group: Group) -> None:
        """Make a share with random weights; `loading` replaces them.

        Args:
            config: the shape of the whole model, for which `fits` holds.
            group: the ranks that compute the others.
        """
        share = share_of(config, group.rank, group.size)
        super().__init__(share)
        self._share = share
        self._vocabulary = Vocabulary(config.vocab_size, group)
        self.config = config
        self.model = ShardedDecoder(share, self._vocabulary, group)
        self.group = group

    def _logits(self, states: mx.array) -> mx.array:
        """Return the logits `(B, L, vocab)` of last states, gathered from all ranks."""
        return self._vocabulary.gathered(super()._logits(states))

    @property
    def bytes_per_token(self) -> int:
        """The size of this rank's keys and values of one token in all layers."""
        width = self._share.num_key_value_heads * self._share.head_dim
        return int(2 * self._share.num_hidden_layers * width * self.dtype.size)


def parts_of(layers: Sequence[Scores]) -> Iterator[RowScores]:
    """Yield the scores of each group of rows in each layer."""
    for layer in layers:
        if isinstance(layer, RowScores):
            yield layer
        else:
            yield from layer


def of_all_heads(
    states: mx.array, layers: Sequence[Scores], group: Group
) -> tuple[mx.array, tuple[Scores, ...]]:
    """Return states, and the scores of all ranks' heads.

    There is one gather for all measured layers and rows. It comes after what the states need, and
    what needs the states comes after it: every rank computes its collectives in this order.

    Args:
        states: what the ranks compute before they gather.
        layers: this rank's, as in `base.Forward`.
        group: the ranks.
    """
    own = [part for part in parts_of(layers) if not isinstance(part, AttentionQueries)]
    if own:
        gathered = _gathered(own, states, group)
        states = mx.depends(states, [_array(part) for part in gathered])
        whole = iter(gathered)

    def completed(part: RowScores) -> RowScores:
        if isinstance(part, AttentionQueries):
            others = part.heads * (group.size - 1)
            return part._replace(completed=lambda _, scores: group.gathered(scores), others=others)
        return next(whole)

    return states, tuple(
        completed(layer) if isinstance(layer, RowScores) else tuple(map(completed, layer))
        for layer in layers
    )


def _gathered(
    parts: Sequence[mx.array | Masked], states: mx.array, group: Group
) -> list[mx.array | Masked]:
    """Return scores `(rows, heads, keys)` of some heads with all of them."""
    arrays = [_array(part) for part in parts]
    flat = [array.reshape(1, -1) for array in arrays]
    own = flat[0] if len(flat) == 1 else mx.concatenate(flat, axis=1)
    whole = group.gathered(mx.depends(own, states))
    found: list[mx.array | Masked] = []
    start = 0
    for part, array in zip(parts, arrays, strict=True):
        rows, _, keys = array.shape
        by_rank = whole[:, start : start + array.size].reshape(-1, *array.shape)
        scores = by_rank.swapaxes(0, 1).reshape(rows, -1, keys)
        found.append(Masked(scores) if isinstance(part, Masked) else scores)
        start += array.size
    return found


def _array(part: mx.array | Masked) -> mx.array:
    return part.scores if isinstance(part, Masked) else part


class ShardedTapped(Share, TappedModel):
    """This rank's share of a model of mlx-lm."""

    def __init__(self, model: nn.Module, config: Mapping[str, Any], group: Group) -> None:
        """Split a model, whose weights need not have been read.

        Args:
            model: as mlx-lm builds it, with a method ``shard``.
            config: the keys of its ``config.json``.
            group: the ranks that compute the other shares.

        Raises:
            ValueError: the heads do not divide; mlx-lm raises it, and others, for other reasons.
        """
        super().__init__(model, config)
        whole = self.attention_heads
        self.group = group
        group.split(model)
        share_vocabulary(model, group)
        self._tried()
        if [heads * group.size for heads in self.attention_heads] != list(whole):
            raise ValueError(f"its {max(whole, default=0)} heads do not divide")

    def states(
        self, tokens: mx.array, cache: Sequence[Any], attention_layers: AttentionLayers
    ) -> tuple[mx.array, tuple[Scores, ...]]:
        """Return the logits: mlx-lm's models do not hand out their states."""
        return super().states(self._leaders(tokens), cache, attention_layers)

    def take_cache(self, cache: Sequence[Any]) -> list[Any]:
        """Return what `make_cache` returned; refuse a cache of mlx-lm's, as `Share`."""
        return list(cache) if isinstance(cache[0], Histories) else super().take_cache(cache)

    def _in_turn(self, tokens: mx.array, before: Sequence[mx.array]) -> mx.array:
        """Let a row's collectives come after those of the row that precedes it."""
        return mx.depends(tokens, before[-1]) if before else tokens

    def _advance(
        self, history: History, tokens: mx.array, layers: AttentionLayers, measured: int = 1
    ) -> tuple[mx.array, list[Attention]]:
        logits, calls = super()._advance(history, self._leaders(tokens), layers, measured)
        logits, whole = of_all_heads(logits, calls, self.group)
        return logits, list(whole)  # type: ignore[arg-type]

    def _leaders(self, tokens: mx.array) -> mx.array:
        return self.group.leaders(tokens.astype(mx.int32))
