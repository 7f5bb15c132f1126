"""Thoughts: where the `think` strategy inserts its text, how it is written there, and its trial.

A thought that was triggered waits for a place in the text that suits it. There it is followed on
trial, with some tokens after it, beside the answer without it. Where it loops, or the model goes on
better without it, it is dropped and the answer goes on as if nothing had been; otherwise it becomes
the text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING

from ...errors import ProfileError
from ...profiles.sections import Think
from ...step import Dropped, DropReason, Origin, Step, Strategy
from ..position import Position, gain
from ..requests import DRAWN, NOTHING, Advance
from ..writer import Record
from .base import Allowance, AnswerText, Outcome, Trial, Trigger, contains, text_of, words_of
from .prose import ALLOWED, Place, asks_for

if TYPE_CHECKING:  # an answer is run without MLX, too
    from mlx_lm.tokenizer_utils import TokenizerWrapper

WITH, WITHOUT = 0, 1
"""The branches of a trial: the answer with the thought, and without it if the two are compared."""
_STOPS = ".!?…,;: "


class Thinking:
    """The thoughts of one answer.

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
        seed: int = 0,
    ) -> None:
        """Check the profile's texts; the request of the prompt may leave no place for thoughts.

        The seed and the prompt say which text comes first.
        """
        self._rule = rule
        self._tokenizer = tokenizer
        self._prompt = prompt
        self._places = ALLOWED[rule.place]
        self._texts = rule.text if isinstance(rule.text, list) else [rule.text]
        self._first = (seed + sum(prompt)) % len(self._texts)
        # The checks come first, so that a text that cannot be used is refused before any work.
        self._tokens = {text: to_tokens(text, tokenizer, vocab_size) for text in self._texts}
        for form in {form for text in self._texts for form in self._forms(text)}:
            with suppress(ProfileError):  # a small vocabulary may lack this form
                self._tokens[form] = to_tokens(form, tokenizer, vocab_size)
        unfit = rule.max_insertions > 0 and asks_for(rule.not_for, tokenizer, prompt)
        self._allowance = Allowance(0 if unfit else rule.max_insertions, rule.min_gap)
        self._trigger = Trigger(rule.wait)
        self._answer = AnswerText(tokenizer)
        self._inside = False

    def due(self, index: int, here: Position, room: int) -> bool:
        return self._due(index, here, room) is not None

    def propose(self, index: int, here: Position, room: int) -> Trial | None:
        tokens = self._due(index, here, room)
        if tokens is None:
            return None
        return ThinkingTrial(
            tokens, here, self._rule, self._tokenizer, self._answer.tokens, self._trigger.at(index)
        )

    def observe(self, step: Step) -> None:
        self._answer.observe(step)
        inserted = step.origin is Origin.INSERTED
        dropped = step.dropped is not None and step.dropped.origin is Origin.INSERTED
        if (inserted and not self._inside) or dropped:
            self._allowance.begin()
            self._trigger.reset()
        if inserted or dropped:
            self._allowance.cover(step.index)
        elif step.strategy is Strategy.THINK_SAMPLE and self._allowance.allows(step.index):
            self._trigger.fire(step.index)
        self._inside = inserted

    def _due(self, index: int, here: Position, room: int) -> tuple[int, ...] | None:
        if here.decision.strategy is Strategy.THINK and self._allowance.allows(index):
            self._trigger.fire(index)
        if self._trigger.at(index) is None or not self._answer.tokens:
            return None
        place = self._answer.place(here.token)
        if place not in self._places or place is None:
            return None
        text = self._next_text()
        if text is None:
            return None
        form = written(text, place, self._answer.paragraph) if isinstance(text, str) else text
        tokens = self._tokens.get(form)
        fits = tokens is not None and len(tokens) + self._rule.watch < room
        return tokens if fits else None

    def _next_text(self) -> str | int | None:
        """Return the text whose turn it is, of those that do not stand in the conversation yet."""
        turn = (self._first + self._allowance.count) % len(self._texts)
        in_turn = (*self._texts[turn:], *self._texts[:turn])
        return next((text for text in in_turn if not self._stands(text)), None)

    def _stands(self, text: str | int) -> bool:
        if isinstance(text, int):  # a token that says nothing may come again
            return False
        words = words_of(text)
        return self._answer.repeats(text) or (bool(words) and contains(self._conversation, words))

    @cached_property
    def _conversation(self) -> list[str]:
        return words_of(text_of(self._tokenizer, self._prompt))

    def _forms(self, text: str | int) -> set[str]:
        if isinstance(text, int):
            return set()
        return {form for place in self._places for form in forms(text, place)}


class ThinkingTrial(Trial):
    """A thought and the tokens after it, and as many tokens of the answer without it.

    branch    inserted      watched
    WITH      Wait ,        is it so ?          judged: loops, echoes, the end
    WITHOUT                 The sky is blue     compared: which goes on better
    """

    def __init__(
        self,
        tokens: Sequence[int],
        here: Position,
        rule: Think,
        tokenizer: TokenizerWrapper,
        before: Sequence[int],
        triggered_at: int | None,
    ) -> None:
        self._tokens = tuple(tokens)
        self._rule = rule
        self._tokenizer = tokenizer
        self._before = before
        self._triggered_at = triggered_at
        self._length = len(tokens) + rule.watch
        self._compared = rule.least_gain > -math.inf and rule.watch > 0
        self.branches = 1 + self._compared
        self._with = here.given(self._tokens[:1])
        self._without = [here.detached()]

    def advance(self) -> Advance | None:
        """A token more with the thought, and once that stands, one without it."""
        if len(self._with) == self._length or self._ends(self._watched):
            return None
        last = {WITH: self._with[-1]}
        if self._compared and self._watched and not self._ends(self._without):
            last[WITHOUT] = self._without[-1]
        rest = self._tokens[len(self._with) :]
        at_last = len(self._with) + 1 == self._length
        return Advance.after(last, NOTHING if at_last else rest[0] if rest else DRAWN)

    def extend(self, found: Sequence[Position]) -> None:
        here, *without = found
        rest = self._tokens[len(self._with) :]
        self._with.append(here.given(rest[:1])[0] if rest else here.sampled())
        self._without += [position.detached() for position in without]

    def outcome(self, cancelled: bool) -> Outcome:
        if cancelled:
            return Outcome()
        reason = self._flaw()
        if reason is not None:
            dropped = self._dropped(Origin.INSERTED, self._with, reason)
            return Outcome(
                branch=WITHOUT if self._compared else WITH,
                positions=self._without,
                origins=[Origin.SAMPLED] * len(self._without),
                record=Record(dropped=dropped),
                until_due=True,
            )
        left = None
        if self._compared:
            left = self._dropped(Origin.SAMPLED, self._without, DropReason.LEFT)
        inserted, watched = len(self._tokens), len(self._watched)
        return Outcome(
            branch=WITH,
            positions=self._with,
            origins=[Origin.INSERTED] * inserted + [Origin.SAMPLED] * watched,
            record=Record(rolled_back=1, triggered_at=self._triggered_at, dropped=left),
        )

    @property
    def _watched(self) -> list[Position]:
        return self._with[len(self._tokens) :]

    def _flaw(self) -> DropReason | None:
        watched = [position.token for position in self._watched]
        length = self._rule.loop_length
        reason = flaw(self._tokenizer, self._before, self._tokens, watched, length)
        if reason is None and self._compared:
            worse = gain(self._watched, self._without) < self._rule.least_gain
            return DropReason.WORSE if worse else None
        return reason

    def _dropped(
        self, origin: Origin, positions: Sequence[Position], reason: DropReason
    ) -> Dropped:
        tokens = tuple(position.token for position in positions)
        return Dropped(origin, tokens, text_of(self._tokenizer, tokens), reason)

    def _ends(self, positions: Sequence[Position]) -> bool:
        return bool(positions) and positions[-1].token in self._tokenizer.eos_token_ids


def written(text: str, place: Place, paragraph: str) -> str:
    plain, trailing = forms(text, place)
    return trailing if re.search(r"…|\.\.\.", paragraph) else plain


def forms(text: str, place: Place) -> tuple[str, str]:
    """Return how a text is written at a place: usually, and where the text before has "…".

    At a line's start it stands without a space before it. Inside a sentence it is an interruption:
    " wait," after a comma, " — wait," or "… wait," between two words.
    """
    core = text.strip()
    if not core or place is Place.SENTENCE:
        alike = f" {core}" if core else text
    elif place is Place.LINE:
        alike = core
    else:
        body = core if re.match(r"I\b|\w?[A-Z]{2}", core) else core[0].lower() + core[1:]
        body, ends = body.rstrip(_STOPS), core.endswith(",")
        if place is Place.WORD:
            return f" — {body}{',' if ends else ' —'}", f"… {body}{',' if ends else ' …'}"
        alike = f" {body},"
    return alike, alike


def flaw(
    tokenizer: TokenizerWrapper,
    before: Sequence[int],
    inserted: Sequence[int],
    watched: Sequence[int],
    loop_length: int,
) -> DropReason | None:
    """Return why a thought is dropped whatever it gains; None if nothing speaks against it.

    Given the tokens of the answer before it, of the thought, and of what was watched behind it.
    """
    ends = bool(watched) and watched[-1] in tokenizer.eos_token_ids
    if ends and not text_of(tokenizer, watched).strip():
        return DropReason.END
    if _echoed(inserted, watched, tokenizer):
        return DropReason.ECHO
    if _loops(before, inserted, watched, loop_length):
        return DropReason.LOOP
    return None


def _echoed(inserted: Sequence[int], watched: Sequence[int], tokenizer: TokenizerWrapper) -> bool:
    """Tell whether what follows an inserted text repeats it."""
    text = text_of(tokenizer, inserted)
    following = text_of(tokenizer, watched)
    if words := words_of(text):
        return contains(words_of(following), words)
    if text.strip() or not text:  # signs, or a token without text
        return bool(set(watched) & set(inserted))
    return following.startswith("\n")


def _loops(
    before: Sequence[int], inserted: Sequence[int], watched: Sequence[int], length: int
) -> bool:
    """Tell whether `length` tokens in a row, the last of them watched, stood in the text before.

    With a length of 0, no repetition is looked for.
    """
    if not length:
        return False
    text = [*before, *inserted, *watched]
    first = len(before) + len(inserted)
    seen = set()
    for end in range(length, len(text) + 1):
        repeated = tuple(text[end - length : end])
        if end > first and repeated in seen:
            return True
        seen.add(repeated)
    return False


def to_tokens(text: str | int, tokenizer: TokenizerWrapper, vocab_size: int) -> tuple[int, ...]:
    """Return the tokens of a thinking text, which may be a token id itself.

    Raises:
        ProfileError: it has none of its own in the vocabulary, or would end the answer.
    """
    if isinstance(text, int):
        tokens = [text]
    else:
        tokens = list(tokenizer.encode(text, add_special_tokens=False))
        if not tokens or tokenizer.unk_token_id in tokens:
            raise ProfileError(f"think.text: {text!r} has no tokens in this model's vocabulary")
    if any(not 0 <= token < vocab_size for token in tokens):
        raise ProfileError(
            f"think.text: {text!r} is outside the vocabulary (token ids 0 to {vocab_size - 1})"
        )
    if any(token in tokenizer.eos_token_ids for token in tokens):
        raise ProfileError(f"think.text: {text!r} holds the end of the text: choose another")
    return tuple(tokens)
