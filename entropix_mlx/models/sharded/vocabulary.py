"""The embedding and the head on several machines: each rank has some tokens of the vocabulary.

Both have a row for each token, so a rank can keep some rows of either: the embeddings of the
others' tokens are 0 in a sum over the ranks, and logits are gathered. What comes out of either is
whole and has the same bits on every rank, so that a model that is split so need not know of it.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_unflatten

from ...distributed.group import Group

_EMBEDDINGS = ("embed_tokens", "word_embeddings")
"""What mlx-lm's models call the embedding of the tokens."""
_HEADS = ("lm_head",)


def token_range(vocabulary: int, rank: int, size: int) -> range:
    """Return the tokens whose rows a rank has: as many as all others, the last may have less.

    Args:
        vocabulary: tokens of the model.
        rank: from 0.
        size: ranks in all.
    """
    each = ceil(vocabulary / size)
    return range(each * rank, min(each * (rank + 1), vocabulary))


class Vocabulary:
    """The tokens of a model, of which this rank has some."""

    def __init__(self, size: int, group: Group) -> None:
        """Deal the tokens.

        Args:
            size: of the vocabulary.
            group: the ranks.
        """
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


class SharedEmbedding(nn.Module):
    """In the place of an embedding, and of a head that is tied to it."""

    def __init__(self, whole: nn.Module, vocabulary: Vocabulary) -> None:
        """Keep this rank's rows of an embedding."""
        super().__init__()
        self.part = _own_rows(whole, vocabulary.own)
        self._vocabulary = vocabulary

    def __call__(self, tokens: mx.array) -> mx.array:
        """Return the embeddings of tokens."""
        return self._vocabulary.embedded(self.part, tokens)

    def as_linear(self, states: mx.array) -> mx.array:
        """Return the logits of last states."""
        return self._vocabulary.gathered(self.part.as_linear(states))


class SharedHead(nn.Module):
    """In the place of a head."""

    def __init__(self, whole: nn.Module, vocabulary: Vocabulary) -> None:
        """Keep this rank's rows of a head."""
        super().__init__()
        self.part = _own_rows(whole, vocabulary.own)
        self._vocabulary = vocabulary

    def __call__(self, states: mx.array) -> mx.array:
        """Return the logits of last states."""
        return self._vocabulary.gathered(self.part(states))


def share_vocabulary(model: nn.Module, group: Group) -> None:
    """Have a model of mlx-lm's keep this rank's rows of its embedding and of its head.

    They are known by their names and by their types: a head that mlx-lm has split already is
    another type. What has another name stays whole, as does what does not leave a token to every
    rank.

    Args:
        model: whose weights need not have been read.
        group: the ranks.
    """
    for path, layer in model.named_modules():
        name = path.rpartition(".")[2]
        replacement: type[SharedEmbedding | SharedHead]
        if name in _EMBEDDINGS and type(layer) in (nn.Embedding, nn.QuantizedEmbedding):
            replacement = SharedEmbedding
        elif name in _HEADS and type(layer) in (nn.Linear, nn.QuantizedLinear):
            replacement = SharedHead
        else:
            continue
        tokens = layer.weight.shape[0]
        if token_range(tokens, group.size - 1, group.size):
            shared = replacement(layer, Vocabulary(tokens, group))
            model.update_modules(tree_unflatten([(path, shared)]))


def _own_rows(layer: nn.Module, own: range) -> nn.Module:
    """Have a layer, all arrays of which have a row for each token, keep some rows."""
    parameters = layer.parameters().items()
    layer.update({name: mx.contiguous(rows[own.start : own.stop]) for name, rows in parameters})
    return layer
