"""What any model is to the decode core: `LanguageModel`, and what its passes return."""

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
    """Whether the scores are the model's. Where it has no attention that can be read, they are 0,
    so that nothing is decided by them, and what follows from them is not measured."""


class Rows(NamedTuple):
    """Rows of one text, or of rollouts of one length, that take a token each."""

    layers: Sequence[TextCache]
    """The caches that hold what precedes the tokens; they are updated in place."""
    tokens: mx.array
    """`(rows,)`"""
    run: bool = False
    """Whether the tokens are of one text and follow one another; each has a row of its own, and
    the cache must take runs."""

    def offsets(self, first: int) -> list[int]:
        """Return the numbers of tokens before each row's next one, given that of the first row."""
        return [first + row * self.run for row in range(self.tokens.size)]


class LanguageModel(nn.Module):
    """A causal language model whose attention can be measured.

    There are two kinds: `llama.Model`, this package's own, and `tapped.TappedModel`, which runs
    any model of mlx-lm.
    """

    config: ModelShape

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
        """Return what `head` makes logits of, `(B, L, …)`, and scores as in `Forward`.

        Args: as for a call.
        """
        raise NotImplementedError

    def head(self, states: mx.array) -> mx.array:
        """Return the logits `(B, L, vocab)` of states, or of some of their tokens."""
        raise NotImplementedError

    @property
    def measures_blocks(self) -> bool:
        """Whether `states` returns the attention of every token of a block, see `BlockCache`."""
        return False

    @property
    def takes_blocks(self) -> bool:
        """Whether `step` takes runs: whether its caches can be cut behind any token."""
        return True

    @property
    def mixes_experts(self) -> bool:
        """Whether each token of a pass may read weights that the others do not."""
        return False

    def prefill(self, tokens: mx.array, cache: Sequence[Any]) -> None:
        """Put `(1, L)` tokens into a cache; nothing is computed before its arrays are asked for."""
        self(tokens, cache)

    def make_cache(self) -> list[Any]:
        """Return the empty cache of a text."""
        raise NotImplementedError

    def take_cache(self, cache: Sequence[Any]) -> list[Any]:
        """Return the cache of a text from one of mlx-lm's, with an entry a layer."""
        return list(cache)

    def least(self, number: int) -> int:
        """Return the smallest of the numbers of all machines that compute this model."""
        return number

    @property
    def dtype(self) -> mx.Dtype:
        """The type of the numbers that the model computes with."""
        raise NotImplementedError

    @property
    def bytes_per_token(self) -> int:
        """What a token takes in the cache."""
        raise NotImplementedError
