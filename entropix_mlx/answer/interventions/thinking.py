"""When a thinking text is inserted, how it is written there, and whether it is kept."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from ...errors import ProfileError
from ...profiles.sections import Think
from ...step import (
    Dropped,
    DropReason,
    Origin,
    Step,
    Strategy,
)
from ..position import Reading
from .base import Allowance
from .placement import (
    USUAL,
    Ground,
    Insertion,
    Trial,
    Wish,
    forms,
    in_a_circle,
    said_again,
    text_of,
    written,
)
from .prompt_intent import asks_for
from .prose import ALLOWED

if TYPE_CHECKING:  # an answer is run without MLX, too
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ..requests import Position


class Thinking:
    """The thoughts of one answer.

    All that it remembers follows from the steps that it is told of, so an answer that is taken up
    again goes on as it would have.

    Raises:
        ProfileError: a text has no tokens of its own in the vocabulary, a token id is outside it,
            or a text would end the answer.
    """

    def __init__(
        self,
        rule: Think,
        tokenizer: TokenizerWrapper,
        vocab_size: int,
        prompt: Sequence[int] = (),
    ) -> None:
        """Check the profile's texts, each of which is used in turn.

        Args:
            rule: `[think]` of a profile.
            tokenizer: from `load`.
            vocab_size: of the model.
            prompt: token ids; what it asks for may leave no place for thoughts.
        """
        self._rule = rule
        self._tokenizer = tokenizer
        self._places = ALLOWED[rule.place]
        self._items = rule.text if isinstance(rule.text, list) else [rule.text]
        # The checks come first, so that a text that cannot be used is told before any work.
        self._tokens = {item: to_tokens(item, tokenizer, vocab_size) for item in self._items}
        for form in {form for item in self._items for form in self._forms(item)}:
            with suppress(ProfileError):  # a small vocabulary may lack this way of writing it
                self._tokens[form] = to_tokens(form, tokenizer, vocab_size)
        unfit = rule.max_insertions > 0 and asks_for(rule.not_for, tokenizer, prompt)
        self._allowance = Allowance(0 if unfit else rule.max_insertions, rule.min_gap)
        self._wish = Wish(rule.wait)
        self._ground = Ground(tokenizer)
        self._inside = False

    def due(self, index: int, reading: Reading, room: int) -> Insertion | None:
        """Return what is to be inserted at a position of the answer, if anything is.

        Args:
            index: of the position.
            reading: what was decided and drawn there.
            room: tokens that the model's context still holds.
        """
        if reading.decision.strategy is Strategy.THINK and self._allowance.allows(index):
            self._wish.make(index)
        wish = self._wish.at(index)
        if wish is None or not self._ground.tokens:
            return None
        place = self._ground.place(reading.token)
        if place not in self._places or place is None:
            return None
        item = self._items[self._allowance.count % len(self._items)]
        if isinstance(item, str) and self._ground.echoes(item):
            return None
        form = written(item, place, self._ground.paragraph) if isinstance(item, str) else item
        if form not in self._tokens:
            return None
        insertion = Insertion(self._tokens[form], Origin.INSERTED, wish, self._rule.watch)
        return insertion if len(insertion.tokens) + insertion.watch < room else None

    def begin(self, insertion: Insertion, here: Position) -> Trial:
        """Return the trial of an insertion at a position."""
        compared = self._rule.least_gain > -math.inf and insertion.watch > 0
        return Trial(insertion, here, self._tokenizer, compared)

    def judge(self, trial: Trial) -> Dropped | None:
        """Return why a thought is not kept; None if it is."""
        watched = [reading.token for reading in trial.watched]
        before, inserted = self._ground.tokens, trial.insertion.tokens
        reason = flaw(self._tokenizer, before, inserted, watched, self._rule.loop_length)
        compared = trial.last == USUAL
        if reason is None and compared and trial.gain < self._rule.least_gain:
            reason = DropReason.WORSE
        return None if reason is None else trial.dropped(reason)

    def observe(self, step: Step) -> None:
        """Take note of a step that was committed."""
        self._ground.observe(step)
        inserted = step.origin is Origin.INSERTED
        dropped = step.dropped is not None and step.dropped.origin is Origin.INSERTED
        if (inserted and not self._inside) or dropped:
            self._allowance.begin()
            self._wish.end()
        if inserted or dropped:
            self._allowance.cover(step.index)
        elif step.strategy is Strategy.THINK_SAMPLE and self._allowance.allows(step.index):
            self._wish.make(step.index)
        self._inside = inserted

    def _forms(self, item: str | int) -> set[str]:
        """Return the ways in which a text may be written at the places that are allowed."""
        if isinstance(item, int):
            return set()
        return {form for place in self._places for form in forms(item, place)}


def flaw(
    tokenizer: TokenizerWrapper,
    before: Sequence[int],
    inserted: Sequence[int],
    watched: Sequence[int],
    loop_length: int,
) -> DropReason | None:
    """Return why a thought is not to be kept; None if nothing speaks against it.

    Args:
        tokenizer: from `load`.
        before: the tokens of the answer.
        inserted: those of the thought.
        watched: those that followed it.
        loop_length: as in the profile.
    """
    ends = bool(watched) and watched[-1] in tokenizer.eos_token_ids
    if ends and not text_of(tokenizer, watched).strip():
        return DropReason.END
    if said_again(inserted, watched, tokenizer):
        return DropReason.ECHO
    if in_a_circle(before, inserted, watched, loop_length):
        return DropReason.LOOP
    return None


def to_tokens(item: str | int, tokenizer: TokenizerWrapper, vocab_size: int) -> tuple[int, ...]:
    """Return the tokens of a thinking text.

    Raises:
        ProfileError: it has none of its own in the vocabulary, or would end the answer.
    """
    if isinstance(item, int):
        tokens = [item]
    else:
        tokens = list(tokenizer.encode(item, add_special_tokens=False))
        if not tokens or tokenizer.unk_token_id in tokens:
            raise ProfileError(f"think.text: {item!r} has no tokens in this model's vocabulary")
    if any(not 0 <= token < vocab_size for token in tokens):
        raise ProfileError(
            f"think.text: {item!r} is outside the vocabulary (token ids 0 to {vocab_size - 1})"
        )
    if any(token in tokenizer.eos_token_ids for token in tokens):
        raise ProfileError(f"think.text: {item!r} holds the end of the text: choose another")
    return tuple(tokens)
