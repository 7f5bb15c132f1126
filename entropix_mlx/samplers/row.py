"""One position of one row, read from the device: what was measured, decided and drawn there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ..errors import NonFiniteLogitsError
from ..step import OF_ATTENTION, Metrics, Strategy

if TYPE_CHECKING:  # an answer is tested without MLX
    from .position import Sampled

Listed = tuple[tuple[int, float], ...]  # tokens and their natural log probabilities, best first


class Row(NamedTuple):
    """One position of one row."""

    token: int  # that was drawn, or put there
    logprob: float  # natural, at temperature 1
    metrics: Metrics[float]
    strategy: Strategy
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    strain: float | None = None
    allowed: Listed = ()  # the most probable tokens that a constraint allows
    alternatives: Listed = ()  # the most probable tokens, if asked for
    distribution: Sampled | None = None
    """The position on the device, of which this row is `number`; None once the row is committed, as
    the arrays of many positions would fill the memory."""
    number: int = 0

    @property
    def forced(self) -> bool:
        """Whether a constraint leaves only one token."""
        return self.strain is not None and len(self.allowed) == 1

    def checked(self) -> Row:
        """Return the row. Raises `NonFiniteLogitsError` if the model computed NaN or infinite
        logits there."""
        if math.isnan(self.metrics.entropy):
            raise NonFiniteLogitsError(
                "the model computed NaN or infinite logits: its weights are damaged, or its"
                " precision is too low; try another conversion of it"
            )
        return self

    def without_attention(self) -> Row:
        """Return the row with metrics of attention that are NaN, as they were not measured."""
        unknown = dict.fromkeys(OF_ATTENTION, math.nan)
        return self._replace(metrics=self.metrics._replace(**unknown))

    def sampled(self) -> Row:
        """Return the row as it is committed: with the strategy where no text is inserted."""
        return self._replace(strategy=self.strategy.sampled(), distribution=None)

    def given(self, tokens: Sequence[int]) -> list[Row]:
        """Return the row with each of some tokens in place of the one that was drawn."""
        assert self.distribution is not None, "the row was committed"
        logprobs = self.distribution.logprobs(self.number, tokens)
        return [
            self._replace(token=token, logprob=logprob, distribution=None)
            for token, logprob in zip(tokens, logprobs, strict=True)
        ]

    def openings(self, count: int) -> list[Row]:
        """Return the row with different tokens that may stand here, the likeliest first."""
        assert self.distribution is not None, "the row was committed"
        return self.given(self.distribution.openings(self.number, count))
