"""The Llama family on several machines: each rank computes some of the heads (tensor parallelism).

    rank 0   heads 0–2   feed-forward 0–511     tokens 0–16383  ┐
    rank 1   heads 3–5   feed-forward 512–1023  tokens …        ├ all ranks have all states
    rank 2   heads 6–8   feed-forward …         tokens …        ┘

A layer splits as in Megatron-LM (arXiv 1909.08053): projections into heads and into the
feed-forward network keep some of their outputs, those out of them some of their inputs, and the
outputs of the latter are summed over the ranks. The embedding and the head have a row for each
token, and keep some rows: the embeddings of the others' tokens are 0 in a sum over the ranks, and
logits are gathered.

Attention is measured over all heads, so the scores of the others' are gathered, for all measured
layers and rows of a pass at once. Logits and scores then have the same bits on every rank, and with
them whatever is measured, planned and drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import ceil
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_unflatten

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


def share_of(config: LlamaConfig, rank: int, size: int) -> LlamaConfig:
    """Return the shape of one rank's share of a model for which `fits` holds."""
    return replace(
        config,
        vocab_size=len(token_range(config.vocab_size, rank, size)),
        intermediate_size=config.intermediate_size // size,
        num_attention_heads=config.num_attention_heads // size,
        num_key_value_heads=config.num_key_value_heads // size,
    )


def fits(config: LlamaConfig, size: int) -> bool:
    """Return whether heads and widths of a model divide by a number of ranks."""
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
        tokens = self._group.of_rank_0(tokens.astype(mx.int32))
        return self._vocabulary.embedded(self.embed_tokens, tokens)


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
        return self.group.least(number)


class ShardedModel(Share, Model):
    """This rank's share of a model of the Llama family."""

    def __init__(self, config: LlamaConfig, group: Group) -> None:
        share = share_of(config, group.rank, group.size)
        super().__init__(share)
        self._vocabulary = Vocabulary(config.vocab_size, group)
        self.config = config
        self.model = ShardedDecoder(share, self._vocabulary, group)
        self.group = group

    def _logits(self, states: mx.array) -> mx.array:
        return self._vocabulary.gathered(super()._logits(states))


def parts_of(layers: Sequence[Scores]) -> Iterator[RowScores]:
    """Yield the scores of each group of rows in each layer."""
    for layer in layers:
        if isinstance(layer, RowScores):
            yield layer
        else:
            yield from layer


def each_part(
    change: Callable[[RowScores], RowScores], layers: Sequence[Scores]
) -> tuple[Scores, ...]:
    """Return the scores of each group of rows in each layer, changed in the order of `parts_of`."""
    return tuple(
        change(layer) if isinstance(layer, RowScores) else tuple(map(change, layer))
        for layer in layers
    )


def of_all_heads(
    states: mx.array, layers: Sequence[Scores], group: Group
) -> tuple[mx.array, tuple[Scores, ...]]:
    """Return states, and the scores of all ranks' heads.

    The states are all ranks' already; the layers' scores, as in `base.Forward`, are this rank's.
    """
    # 1. One gather serves all measured layers and rows. It depends on the states, so that it comes
    #    after the sums of the pass on every rank.
    own = [part for part in parts_of(layers) if not isinstance(part, AttentionQueries)]
    if own:
        gathered = _gathered(own, states, group)
        # 2. The states depend on it in turn: the collectives of the head come after it.
        states = mx.depends(states, [_array(part) for part in gathered])
        whole = iter(gathered)

    # 3. Deferred scores are gathered when they are computed, if ever.
    def completed(part: RowScores) -> RowScores:
        if isinstance(part, AttentionQueries):
            return part._replace(
                gather=lambda _, scores: group.gathered(scores),
                other_heads=part.heads * (group.size - 1),
            )
        return next(whole)

    return states, each_part(completed, layers)


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
        """Split a model of mlx-lm, which has a method ``shard``; no weights are read.

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
        return super().states(self._of_rank_0(tokens), cache, attention_layers)

    def take_cache(self, cache: Sequence[Any]) -> list[Any]:
        """Return what `make_cache` returned; refuse a cache of mlx-lm's, as `Share`."""
        return list(cache) if isinstance(cache[0], Histories) else super().take_cache(cache)

    def _in_turn(self, tokens: mx.array, before: Sequence[mx.array]) -> mx.array:
        """Let a row's collectives come after those of the row that precedes it."""
        return mx.depends(tokens, before[-1]) if before else tokens

    def _advance(
        self, history: History, tokens: mx.array, layers: AttentionLayers, measured: int = 1
    ) -> tuple[mx.array, list[Attention]]:
        logits, calls = super()._advance(history, self._of_rank_0(tokens), layers, measured)
        logits, whole = of_all_heads(logits, calls, self.group)
        return logits, list(whole)  # type: ignore[arg-type]

    def _of_rank_0(self, tokens: mx.array) -> mx.array:
        return self.group.of_rank_0(tokens.astype(mx.int32))


_EMBEDDINGS = ("embed_tokens", "word_embeddings")
"""What mlx-lm's models call the embedding of the tokens."""
_HEADS = ("lm_head",)


def token_range(vocabulary: int, rank: int, size: int) -> range:
    """Return the tokens whose rows a rank has: as many as all others, the last may have less."""
    each = ceil(vocabulary / size)
    return range(each * rank, min(each * (rank + 1), vocabulary))


class Vocabulary:
    """The tokens of a model, of which this rank has some."""

    def __init__(self, size: int, group: Group) -> None:
        self._size = size
        self._group = group
        self.own = token_range(size, group.rank, group.size)

    def embedded(self, embed: Callable[[mx.array], mx.array], tokens: mx.array) -> mx.array:
        """Return the embeddings of tokens; `embed` knows this rank's, numbered from 0."""
        own = tokens.astype(mx.int32) - self.own.start
        here = mx.logical_and(own >= 0, own < len(self.own))
        found = embed(mx.where(here, own, 0))
        return self._group.total(mx.where(here[..., None], found, mx.zeros_like(found)))

    def gathered(self, logits: mx.array) -> mx.array:
        """Return the logits `(…, vocabulary)` of all tokens, of which this rank has its own."""
        short = ceil(self._size / self._group.size) - logits.shape[-1]
        if short:  # every rank's must have one shape
            logits = mx.pad(logits, [(0, 0)] * (logits.ndim - 1) + [(0, short)])
        by_rank = mx.moveaxis(self._group.gathered(logits[None]), 0, -2)
        return by_rank.reshape(*by_rank.shape[:-2], -1)[..., : self._size]


class SharedRows(nn.Module):
    """This rank's rows of an embedding, to which a head may be tied, or of a head."""

    def __init__(self, whole: nn.Module, vocabulary: Vocabulary, is_head: bool) -> None:
        super().__init__()
        self.part = _own_rows(whole, vocabulary.own)
        self._vocabulary = vocabulary
        self._is_head = is_head

    def __call__(self, x: mx.array) -> mx.array:
        """Return the embeddings of tokens; of a head, the logits of last states."""
        if self._is_head:
            return self._vocabulary.gathered(self.part(x))
        return self._vocabulary.embedded(self.part, x)

    def as_linear(self, states: mx.array) -> mx.array:
        return self._vocabulary.gathered(self.part.as_linear(states))


def share_vocabulary(model: nn.Module, group: Group) -> None:
    """Have a model of mlx-lm's keep this rank's rows of its embedding and of its head.

    They are known by their names and by their types: a head that mlx-lm has split already is
    another type. What has another name stays whole, as does what does not leave a token to every
    rank.
    """
    for path, layer in model.named_modules():
        name = path.rpartition(".")[2]
        is_head = name in _HEADS and type(layer) in (nn.Linear, nn.QuantizedLinear)
        embeds = name in _EMBEDDINGS and type(layer) in (nn.Embedding, nn.QuantizedEmbedding)
        tokens = layer.weight.shape[0] if is_head or embeds else 0
        if token_range(tokens, group.size - 1, group.size):
            shared = SharedRows(layer, Vocabulary(tokens, group), is_head)
            model.update_modules(tree_unflatten([(path, shared)]))


def _own_rows(layer: nn.Module, own: range) -> nn.Module:
    parameters = layer.parameters().items()
    layer.update({name: mx.contiguous(rows[own.start : own.stop]) for name, rows in parameters})
    return layer
