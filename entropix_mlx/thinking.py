"""When the thinking text may be inserted, and the tokens it consists of."""

from __future__ import annotations

from mlx_lm.tokenizer_utils import TokenizerWrapper

from .errors import ProfileError
from .profile import Think


class Thinking:
    """The insertions of one answer.

    Raises:
        ProfileError: a text has no tokens, or a token id is outside the vocabulary.
    """

    def __init__(self, rule: Think, tokenizer: TokenizerWrapper, vocab_size: int) -> None:
        """Tokenise the profile's texts, each of which is used in turn."""
        items = rule.text if isinstance(rule.text, list) else [rule.text]
        self._texts = [_to_tokens(item, tokenizer, vocab_size) for item in items]
        self._rule = rule
        self._count = 0
        self._earliest = 0

    def allowed(self, index: int) -> bool:
        """Tell whether the text may be inserted at a position of the answer."""
        return self._count < self._rule.max_insertions and index >= self._earliest

    def insert(self, index: int) -> list[int]:
        """Return the tokens to insert from a position on, and count the insertion."""
        tokens = self._texts[self._count % len(self._texts)]
        self._count += 1
        self._earliest = index + len(tokens) + self._rule.min_gap
        return tokens


def _to_tokens(item: str | int, tokenizer: TokenizerWrapper, vocab_size: int) -> list[int]:
    if isinstance(item, int):
        if not 0 <= item < vocab_size:
            raise ProfileError(
                f"think.text: the token id {item} is outside the vocabulary (0 to {vocab_size - 1})"
            )
        return [item]
    tokens: list[int] = tokenizer.encode(item, add_special_tokens=False)
    if not tokens:
        raise ProfileError(f"think.text: {item!r} has no tokens in this model's vocabulary")
    return tokens
