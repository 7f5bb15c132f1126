"""The interface of a model to the decode core: `LanguageModel`, and what its passes return."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import mlx.core as mx
import mlx.nn as nn

from .config import ModelShape
from .llama.cache import Scores, TextCache

AttentionLayers = Literal["last", "all"]
"""Which layers' attention is measured. The published sampler measures the last one."""


class Forward(NamedTuple):
    """The output of a forward pass."""

    logits: mx.array
    """`(B, L, vocab)`"""
    scores: tuple[Scores, ...]
    """Of each measured layer, the last query's attention scores `(B, H, keys)`; where rows come in
    groups, those of each group."""
    attended: bool = True
    """Whether the scores are the model's. Those of a model without readable attention are 0, and
    must not be measured."""


class Rows(NamedTuple):
    """Rows of one text, or of branches of one length, that take a token each."""

    layers: Sequence[TextCache]
    """The caches that hold what precedes the tokens; they are updated in place."""
    tokens: mx.array
    """`(rows,)`"""
    block: bool = False
    """Whether the tokens follow one another in one text, as those of a speculative block; each has
    a row of its own, and the cache must take blocks."""

    def offsets(self, first: int) -> list[int]:
        """Return the numbers of tokens before each row's next one, given that of the first row."""
        return [first + row * self.block for row in range(self.tokens.size)]


class LanguageModel(nn.Module):
    """A causal language model whose attention can be measured.

    There are two kinds: `llama.Model`, this package's own port, and `tapped.TappedModel`, which
    runs any model of mlx-lm. Both can be split over several machines (`sharded`).
    """

    config: ModelShape
    measures_blocks = False
    """Whether `states` can return the attention of every token of a block (see `BlockCache`)."""
    takes_blocks = True
    """Whether `step` takes blocks: its caches can be cut behind any token of a pass."""
    mixes_experts = False
    """Whether each token of a pass may read weights that the others do not."""

    def __call__(
        self,
        tokens: mx.array,
        cache: Sequence[Any] | None = None,
        attention_layers: AttentionLayers = "last",
    ) -> Forward:
        """Run the model on `(B, L)` token ids that follow those in the cache.

        Args:
            tokens: ids.
            cache: from `make_cache`, updated in place; None starts from nothing and keeps nothing.
            attention_layers: which layers' scores to return.
        """
        raise NotImplementedError

    def step(self, groups: Sequence[Rows], attention_layers: AttentionLayers = "last") -> Forward:
        """Run the model on one token of each row; the logits have the rows in order."""
        raise NotImplementedError

    def states(
        self, tokens: mx.array, cache: Sequence[Any], attention_layers: AttentionLayers
    ) -> tuple[mx.array, tuple[Scores, ...]]:
        """Return the input of `head`, `(B, L, …)`, and scores as in `Forward`."""
        raise NotImplementedError

    def head(self, states: mx.array) -> mx.array:
        """Return the logits `(B, L, vocab)` of states, or of some of their tokens."""
        raise NotImplementedError

    def prefill(self, tokens: mx.array, cache: Sequence[Any]) -> None:
        """Put `(1, L)` tokens into a cache; nothing is computed before its arrays are needed."""
        self(tokens, cache)

    def make_cache(self) -> list[Any]:
        raise NotImplementedError

    def take_cache(self, cache: Sequence[Any]) -> list[Any]:
        """Return the cache of a text from one of mlx-lm's, with an entry a layer."""
        return list(cache)

    def stored_cache(self, cache: Sequence[Any]) -> list[Any]:
        """Return mlx-lm's caches of a text, of which `restored_cache` makes another text's."""
        return list(cache)

    def restored_cache(self, caches: Sequence[Any], length: int) -> list[Any]:
        """Return the cache of a text of so many tokens from those of `stored_cache`."""
        return list(caches)

    def least(self, number: int) -> int:
        """Return the smallest of the numbers of all machines that compute this model."""
        return number

    @property
    def dtype(self) -> mx.Dtype:
        """The type of the weights that are not packed, in which the model computes."""
        raise NotImplementedError

    @property
    def bytes_per_token(self) -> int:
        raise NotImplementedError
