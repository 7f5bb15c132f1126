"""When the thinking text may be inserted, and the tokens it consists of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import ProfileError
from ..profiles.sections import Think
from ..step import Origin, Step
from .budget import Allowance

if TYPE_CHECKING:  # an answer is run without MLX, too
    from mlx_lm.tokenizer_utils import TokenizerWrapper


class Thinking:
    """The insertions of one answer.

    Raises:
        ProfileError: a text has no tokens of its own in the vocabulary, a token id is outside it,
            or a text would end the answer.
    """

    def __init__(self, rule: Think, tokenizer: TokenizerWrapper, vocab_size: int) -> None:
        """Tokenise the profile's texts, each of which is used in turn."""
        items = rule.text if isinstance(rule.text, list) else [rule.text]
        self._texts = [_to_tokens(item, tokenizer, vocab_size) for item in items]
        self._allowance = Allowance(rule.max_insertions, rule.min_gap)
        self._inside = False

    def allowed(self, index: int) -> bool:
        """Tell whether the text may be inserted at a position of the answer."""
        return self._allowance.allows(index)

    def tokens(self) -> list[int]:
        """Return the tokens to insert next."""
        return self._texts[self._allowance.count % len(self._texts)]

    def observe(self, step: Step) -> None:
        """Count a step that was committed."""
        inserted = step.origin is Origin.INSERTED
        if inserted:
            if not self._inside:
                self._allowance.begin()
            self._allowance.cover(step.index)
        self._inside = inserted


def _to_tokens(item: str | int, tokenizer: TokenizerWrapper, vocab_size: int) -> list[int]:
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
    return tokens
