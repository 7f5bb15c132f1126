"""The constraint on one answer: what is allowed at the end of its text and, at a fork, of each
branch.

What is allowed after a token is known only once the host knows the token. So nothing is queued
behind a position of a constrained answer before it was read. In return, tokens that the constraint
forces are proposed as a block, and one pass computes them all:

    pass     1          2                              3
    block    {          "  [name] ["] [:]          →   [space] …       forced: name ":
    mask     after {    after each of these tokens

A model that reasons first is left alone until its reasoning ends. A JSON answer that only repeats
itself would never end, so then it may do no more than close what is open (`Closing`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import mlx.core as mx
import numpy as np

from ..answer.interventions.reasoning import ReasoningSpan
from ..answer.loops import LoopDetector
from ..answer.requests import Advance
from ..constraints.constraint import Constraint
from ..constraints.matcher import Mask, Matcher, matcher_for

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

MOST_FORCED = 32
"""Forced tokens that one pass computes."""
PUNCTUATION = "{}[]:,\"' \t\n"
CLOSING = '"}]'
MOST_LOOPS = 3
"""So many times an answer may repeat itself; then it closes everything."""


class ConstrainedText:
    """The matchers of one answer: that of its text and, at a fork, of each branch."""

    def __init__(
        self,
        matcher: Matcher,
        reasoning: ReasoningSpan,
        skeleton: Skeleton,
        closing: Closing | None = None,
    ) -> None:
        self._text = matcher
        self._closing = closing
        self._reasoning = reasoning
        self._skeleton = skeleton
        self._branches: list[list[Matcher]] = []
        """Of each branch, the matcher at the fork, and after each of its tokens."""

    def add(self, token: int) -> None:
        """Let a token join the text.

        Raises:
            ConstraintError: it is not allowed.
        """
        if not self._reasoning.takes(token):
            self._skeleton.add(token, self._text.forced()[:1])
            self._text.add(token)
            if self._closing is not None:
                self._closing.add(token)

    def follow(self, request: Advance, members: Sequence[int]) -> None:
        """Let the tokens of a request join the text, or its branches.

        Raises:
            ConstraintError: one is not allowed.
        """
        for member in members:
            if self._branches:
                following = self._branches[member][-1].copy()
                following.add(request.tokens[member])
                self._branches[member].append(following)
            elif request.logprobs:  # not the last token of the prompt
                self.add(request.tokens[member])

    def block(self, proposed: Sequence[int]) -> tuple[int, ...]:
        """Return the block that follows the text: what is forced, with punctuation as it stood
        last, or else what fits of a proposal."""
        if self._reasoning.open or (self._closing is not None and self._closing.due):
            return ()
        if ahead := self._skeleton.following(self._text):
            return tuple(ahead)
        return tuple(proposed[: self._text.fitting(proposed)]) if proposed else ()

    def mask(self, members: Sequence[int], block: Sequence[int]) -> mx.array | None:
        """Return what is allowed `(rows, words)` after each member, or after the text and each
        token of a block; None while everything is."""
        if self._reasoning.open:
            return None
        matchers = [self._branches[m][-1] for m in members] if self._branches else [self._text]
        found = [mask for matcher in matchers for mask in matcher.masks(block)]
        if self._closing is not None and self._closing.due:
            found = [self._closing.narrowed(mask) for mask in found]
        return mx.array(np.stack([self._also_reasoning(mask) for mask in found]))

    def _also_reasoning(self, mask: Mask) -> Mask:
        """Return a mask that also allows the reasoning to begin, where it may."""
        if (start := self._reasoning.may_begin_with) is None:
            return mask
        wider = mask.copy()
        word, bit = divmod(start, 32)
        wider[word] |= np.uint32(1 << bit)
        return wider

    def split(self, branches: int) -> None:
        self._branches = [[self._text] for _ in range(branches)]

    def keep(self, branch: int, length: int) -> None:
        self._text = self._branches[branch][length]
        self._branches = []


class Closing:
    """Ends the loops of a JSON answer: in one, only tokens that close a value are allowed, where
    the constraint allows any.

    Behind such a token the answer goes on as usual, until it repeats itself too often.
    """

    def __init__(self, tokenizer: TokenizerWrapper) -> None:
        vocabulary = tokenizer.get_vocab()
        listed = (vocabulary.get(sign) for sign in CLOSING)
        signs = {token for token in listed if token is not None}
        self._closing = signs | set(tokenizer.eos_token_ids)
        self._decode = tokenizer.decode
        self._loops = LoopDetector(self._decode)
        self._found = 0
        self.due = False
        """Whether the answer is in a loop."""

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
        for word, bit in (divmod(token, 32) for token in self._closing):
            if word < len(mask):
                closing[word] |= np.uint32(1 << bit)
        closing &= mask
        return closing if closing.any() else mask


class Skeleton:
    """What is no value in a text: forced tokens, and the punctuation and white space between."""

    def __init__(self, tokenizer: TokenizerWrapper) -> None:
        self._decode = tokenizer.decode
        self._next: dict[int | None, int] = {}
        """The punctuation that followed a token last; under None, a forced one."""
        self._last: int | None = None

    def add(self, token: int, forced: Sequence[int]) -> None:
        """Note the next token of the text, and the one that was forced there, if any."""
        is_forced = [token] == list(forced)
        if not is_forced and not self._decode([token]).strip(PUNCTUATION):
            self._next[self._last] = token
        self._last = None if is_forced else token

    def following(self, matcher: Matcher) -> list[int]:
        """Return the tokens that are forced behind a text or likely to follow, until a value."""
        found: list[int] = []
        ahead, last = matcher.copy(), self._last
        while len(found) < MOST_FORCED:
            following = ahead.forced()[: MOST_FORCED - len(found)]
            last = None if following else self._next.get(last)
            if last is not None and ahead.fitting([last]):
                following = [last]
            if not following:
                break
            for token in following:
                ahead.add(token)
                found.append(token)
        return found


def constrained_text(
    constraint: Constraint,
    tokenizer: TokenizerWrapper,
    vocab: int,
    prompt: Sequence[int],
    answered: Sequence[int] = (),
    *,
    closes: bool = False,
) -> ConstrainedText:
    """Return the constraint at the beginning of an answer, or behind the tokens it has already.

    Args:
        closes: whether an answer in a loop is brought to its end.

    Raises:
        ConstraintError: it cannot be compiled, or does not allow those tokens.
    """
    matcher = matcher_for(constraint, tokenizer, vocab)
    closing = Closing(tokenizer) if closes else None
    text = ConstrainedText(matcher, ReasoningSpan(tokenizer, prompt), Skeleton(tokenizer), closing)
    for token in answered:
        text.add(token)
    return text
