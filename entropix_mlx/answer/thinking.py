"""Thoughts: a short text that is inserted where the sampler's strategy is `think`.

A thought that was triggered waits for the end of a sentence or a line outside code. One that the
conversation holds already is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from ..errors import ProfileError
from ..profiles.sections import Think
from ..samplers.row import Row
from ..step import Origin, Step, Strategy
from .interventions import (
    Allowance,
    AnswerSoFar,
    Insertion,
    Trigger,
    may_be_interrupted,
    says,
    words_of,
)

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper


class Thinking:
    """The intervention that inserts thoughts."""

    def __init__(
        self, rule: Think, tokenizer: TokenizerWrapper, vocab_size: int, turn: int = 0
    ) -> None:
        """Check the profile's texts.

        Args:
            turn: says which of several texts comes first.

        Raises:
            ProfileError: a text has no tokens of its own in the vocabulary, a token id is outside
                it, or a text would end the answer.
        """
        self._texts = rule.text if isinstance(rule.text, list) else [rule.text]
        self._turn = turn
        self._tokens = {text: to_tokens(text, tokenizer, vocab_size) for text in self._texts}
        for form in {form for text in self._texts for form in forms(text)}:
            with suppress(ProfileError):  # a small vocabulary may lack this form
                self._tokens[form] = to_tokens(form, tokenizer, vocab_size)
        self._allowance = Allowance(rule.max_insertions, rule.min_gap)
        self._trigger = Trigger(rule.wait)
        self._inside = False
        self._conversation: str | None = None

    @property
    def active(self) -> bool:
        return self._allowance.left

    def __call__(self, answer: AnswerSoFar, row: Row) -> Insertion | None:
        if row.strategy is Strategy.THINK and self._allowance.allows(answer.index):
            self._trigger.index = answer.index
        triggered_at = self._trigger.at(answer.index)
        if triggered_at is None or not may_be_interrupted(answer, row.token):
            return None
        text = self._next_text(answer)
        if text is None:
            return None
        at_sentence, at_line = forms(text)
        tokens = self._tokens.get(at_sentence if answer.lines.last else at_line)
        if tokens is None or len(tokens) >= answer.room:
            return None
        return Insertion(tokens, about={"triggered_at": triggered_at})

    def observe(self, step: Step) -> None:
        inserted = step.origin is Origin.INSERTED
        if inserted and not self._inside:
            self._allowance.begin()
            self._trigger.index = None
        if inserted:
            self._allowance.cover(step.index)
        elif step.strategy is Strategy.THINK_SAMPLE and self._allowance.allows(step.index):
            self._trigger.index = step.index
        self._inside = inserted

    def _next_text(self, answer: AnswerSoFar) -> str | int | None:
        """Return the text whose turn it is, of those that do not stand in the conversation yet."""
        turn = (self._turn + self._allowance.count) % len(self._texts)
        in_turn = (*self._texts[turn:], *self._texts[:turn])
        return next((text for text in in_turn if not self._stands(answer, text)), None)

    def _stands(self, answer: AnswerSoFar, text: str | int) -> bool:
        if isinstance(text, int):  # a token that says nothing may come again
            return False
        if not text.strip():
            return answer.text.endswith("\n")
        if says(answer.text, text):
            return True
        if self._conversation is None:
            ends = answer.tokenizer.eos_token_ids
            plain = [token for token in answer.prompt if token not in ends]
            self._conversation = str(answer.tokenizer.decode(plain))
        return bool(words_of(text)) and says(self._conversation, text)


def forms(text: str | int) -> tuple[str | int, str | int]:
    """Return how a text is written behind a sentence, and at the start of a line."""
    core = "" if isinstance(text, int) else text.strip()
    return (f" {core}", core) if core else (text, text)


def to_tokens(text: str | int, tokenizer: TokenizerWrapper, vocab_size: int) -> Sequence[int]:
    """Return the tokens of a thinking text, which may be a token id itself. Raises `ProfileError`
    if it has none of its own in the vocabulary, or would end the answer."""
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
