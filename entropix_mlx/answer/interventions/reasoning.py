"""A budget of reasoning: behind it, the model's own end tag is put into the answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...step import Step
from ..position import Position
from ..reasoning import ReasoningSpan
from .base import Outcome, Trial

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper


class ReasoningBudget:
    """Ends reasoning that has had its tokens, the start tag not among them; an `Intervention`."""

    def __init__(self, most: int, tokenizer: TokenizerWrapper, prompt: Sequence[int]) -> None:
        self._span = ReasoningSpan(tokenizer, prompt)
        of_tag = 0 if self._span.may_begin_with is None else len(tokenizer.think_start_tokens) - 1
        self._left = most + of_tag

    def due(self, index: int, here: Position, room: int) -> bool:
        """As in `Intervention`; a model that is about to end its reasoning is let."""
        return self._span.open and self._left <= 0 and here.token != self._span.rest_of_end[0]

    def propose(self, index: int, here: Position, room: int) -> Trial | None:
        return EndOfReasoning(self._span.rest_of_end) if self.due(index, here, room) else None

    def observe(self, step: Step) -> None:
        was_open = self._span.open
        self._span.takes(step.token)
        self._left -= was_open


class EndOfReasoning(Trial):
    """The end tag, without a look at what would follow it."""

    branches = 0

    def __init__(self, tag: Sequence[int]) -> None:
        self._tag = tag

    def advance(self) -> None:
        return None

    def extend(self, found: Sequence[Position]) -> None:
        raise NotImplementedError("nothing was asked for")

    def outcome(self, cancelled: bool) -> Outcome:
        return Outcome(insertion=() if cancelled else self._tag)
