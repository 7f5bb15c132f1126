"""The constraint on one text, or on a branch of it: what may follow.

What is allowed after a token is known once the host knows the token. The forward pass needs no
mask, so it is queued first, the mask is made meanwhile, and then the draw is queued.

A model that reasons first is left alone until its reasoning ends. A JSON answer that only repeats
itself would never end, so then it may do no more than close what is open (`Closing`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..answer.loops import LoopDetector
from ..answer.reasoning import ReasoningSpan
from ..constraints.constraint import Constraint
from ..constraints.matcher import WORD, Mask, Matcher, matcher_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlx_lm.tokenizer_utils import TokenizerWrapper

CLOSING = '"}]'
MOST_LOOPS = 3  # after which an answer closes everything


class Constrained:
    """A constraint at the end of a text."""

    def __init__(
        self, matcher: Matcher, reasoning: ReasoningSpan, closing: Closing | None = None
    ) -> None:
        self._matcher = matcher
        self._reasoning = reasoning
        self._closing = closing

    def branch(self) -> Constrained:
        """Return the constraint of a branch that begins here."""
        return Constrained(self._matcher.copy(), self._reasoning.copy())

    def add(self, token: int) -> None:
        """Let a token join the text. Raises `ConstraintError` if it is not allowed."""
        if not self._reasoning.takes(token):
            self._matcher.add(token)
            if self._closing is not None:
                self._closing.add(token)

    def fitting(self, tokens: Sequence[int]) -> list[int]:
        """Return as many of some tokens as may follow one another here."""
        return [] if self._free else list(tokens[: self._matcher.fitting(tokens)])

    def masks(self, following: Sequence[int] = ()) -> list[Mask] | None:
        """Return what is allowed next, and after each of some tokens, which must all fit; None
        while everything is."""
        if self._reasoning.open:
            return None
        found = self._matcher.masks(following)
        if self._closing is not None and self._closing.due:
            found = [self._closing.narrowed(mask) for mask in found]
        return [self._also_reasoning(mask) for mask in found]

    @property
    def _free(self) -> bool:
        """Whether nothing can be said of what follows."""
        loops = self._closing is not None and self._closing.due
        return loops or self._reasoning.open or self._reasoning.may_begin_with is not None

    def _also_reasoning(self, mask: Mask) -> Mask:
        """Return a mask that also allows the reasoning to begin, where it may."""
        if (start := self._reasoning.may_begin_with) is None:
            return mask
        wider = mask.copy()
        word, bit = divmod(start, WORD)
        wider[word] |= np.uint32(1 << bit)
        return wider


class Closing:
    """Ends the loops of a JSON answer: in one, only tokens that close a value are allowed, where
    the constraint allows any. Then it goes on as usual, until it repeats itself too often."""

    def __init__(self, tokenizer: TokenizerWrapper) -> None:
        vocabulary = tokenizer.get_vocab()
        listed = (vocabulary.get(sign) for sign in CLOSING)
        signs = {token for token in listed if token is not None}
        self._closing = signs | set(tokenizer.eos_token_ids)
        self._decode = tokenizer.decode
        self._loops = LoopDetector(self._decode)
        self._found = 0
        self.due = False  # whether the answer is in a loop

    def add(self, token: int) -> None:
        if self._loops.add(token) and not self.due:
            self.due = True
            self._found += 1
        elif self.due and token in self._closing and self._found < MOST_LOOPS:
            self.due = False
            self._loops = LoopDetector(self._decode)

    def narrowed(self, mask: Mask) -> Mask:
        """Return the allowed tokens that close something; all that are, if none does."""
        closing = np.zeros_like(mask)
        for word, bit in (divmod(token, WORD) for token in self._closing):
            if word < len(mask):
                closing[word] |= np.uint32(1 << bit)
        closing &= mask
        return closing if closing.any() else mask


def constrained(
    constraint: Constraint, tokenizer: TokenizerWrapper, vocab: int, prompt: Sequence[int]
) -> Constrained:
    """Return the constraint at the beginning of an answer. Raises `ConstraintError` if it cannot be
    compiled."""
    matcher = matcher_for(constraint, tokenizer, vocab)
    closing = Closing(tokenizer) if constraint.is_json else None
    return Constrained(matcher, ReasoningSpan(tokenizer, prompt), closing)
