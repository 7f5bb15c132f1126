"""Models that mlx-lm computes, on several machines: each is split by mlx-lm's own `shard`.

What that splits depends on the architecture: heads, feed-forward networks and experts, mostly. Its
sums over the ranks are mlx-lm's, too. Here the embedding and the head over the vocabulary are split
as well, and a pass gets its tokens from rank 0 where that leads, and the scores of all heads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from ...distributed.group import Group
from ..base import AttentionLayers
from ..llama.cache import Scores
from ..tapped.caches import Histories, History
from ..tapped.model import TappedModel
from ..tapped.tap import Attention
from .model import Share, of_all_heads
from .vocabulary import share_vocabulary


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
