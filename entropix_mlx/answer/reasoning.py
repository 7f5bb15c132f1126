"""The reasoning that an answer may begin with, between the model's own tags, and its budget."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING

from ..samplers.row import Row
from ..step import Step
from .interventions import AnswerSoFar, Insertion

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper


NEAR_THE_END = 8  # tokens after the reasoning of a prompt that belong to the turn to be written


class ReasoningSpan:
    """Whether a text is inside the model's reasoning, which no constraint is put on. Where the
    prompt leaves it open, it lasts until its end tag; else the first token may be its start tag."""

    def __init__(self, tokenizer: TokenizerWrapper, prompt: Sequence[int]) -> None:
        """See how a prompt ends; models without tags of reasoning never reason."""
        self._start: tuple[int, ...] = ()
        self._end: tuple[int, ...] = ()
        self.open = False
        self._may_begin = False
        self._last: list[int] = []
        if not tokenizer.has_thinking:
            return
        self._start = tuple(tokenizer.think_start_tokens)
        self._end = tuple(tokenizer.think_end_tokens)
        begun = tokenizer.rfind_think_start(list(prompt))
        ended = tokenizer.rfind_think_end(list(prompt))
        self.open = begun > ended
        # An empty piece of reasoning at the end of the prompt means that there shall be none.
        self._may_begin = not self.open and ended < len(prompt) - NEAR_THE_END

    def copy(self) -> ReasoningSpan:
        return copy(self)  # its fields are replaced, never changed

    def takes(self, token: int) -> bool:
        """Note a token of the text; return whether it is part of the reasoning."""
        if self._may_begin and token == self._start[0]:
            self.open = True
        self._may_begin = False
        if not self.open:
            return False
        self._last = [*self._last, token][-len(self._end) :]
        self.open = tuple(self._last) != self._end
        return True

    @property
    def may_begin_with(self) -> int | None:
        """The token with which it may begin here; None where it may not."""
        return self._start[0] if self._may_begin else None

    @property
    def rest_of_end(self) -> tuple[int, ...]:
        """The tokens that end it here: its end tag, or what is missing of it."""
        lengths = range(len(self._end) - 1, 0, -1)
        begun = next((n for n in lengths if tuple(self._last[-n:]) == self._end[:n]), 0)
        return self._end[begun:]


class ReasoningBudget:
    """Puts the end tag behind reasoning that has had its tokens, the start tag not among them."""

    def __init__(self, most: int, tokenizer: TokenizerWrapper, prompt: Sequence[int]) -> None:
        self._span = ReasoningSpan(tokenizer, prompt)
        of_tag = 0 if self._span.may_begin_with is None else len(tokenizer.think_start_tokens) - 1
        self._left = most + of_tag

    @property
    def active(self) -> bool:
        return self._span.open or self._span.may_begin_with is not None

    def __call__(self, answer: AnswerSoFar, row: Row) -> Insertion | None:
        """Return the end tag; a model that is about to end its reasoning is let."""
        tag = self._span.rest_of_end
        if not self._span.open or self._left > 0 or row.token == tag[0]:
            return None
        return Insertion(tag)

    def observe(self, step: Step) -> None:
        was_open = self._span.open
        self._span.takes(step.token)
        self._left -= was_open
