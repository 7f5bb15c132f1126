"""The bytes of a token, which OpenAI's log probabilities list."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

_BYTE = re.compile("<0x([0-9A-F]{2})>")
_SPACE = "\u2581"
"""What SentencePiece writes for a space."""


class TokenText:
    """What each token of a vocabulary stands for."""

    def __init__(self, tokenizer: TokenizerWrapper) -> None:
        """Find out how the tokenizer writes bytes."""
        self._tokenizer = tokenizer
        self._special = set(tokenizer.all_special_ids)
        decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
        state = decoder.__getstate__() if decoder is not None else b""
        self._by_character = _byte_characters() if b"ByteLevel" in bytes(state) else {}
        self._known: dict[int, bytes] = {}

    def bytes_of(self, token: int) -> bytes:
        """Return the bytes that a token adds to a text; the name of one that is special."""
        if token not in self._known:
            self._known[token] = self._find(token)
        return self._known[token]

    def text_of(self, token: int) -> str:
        """Return the token's text; what is no text by itself is written as OpenAI writes it."""
        content = self.bytes_of(token)
        try:
            return content.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content)

    def _find(self, token: int) -> bytes:
        piece = self._tokenizer.convert_ids_to_tokens(token)
        if piece is None:  # an id that the model has and the tokenizer has not
            return b""
        if token in self._special:
            return str(piece).encode()
        if byte := _BYTE.fullmatch(piece):
            return bytes([int(byte[1], 16)])
        if self._by_character and all(character in self._by_character for character in piece):
            return bytes(self._by_character[character] for character in piece)
        return str(piece).replace(_SPACE, " ").encode()


def _byte_characters() -> dict[str, int]:
    """Return the byte that each character stands for in a byte-level vocabulary, as GPT-2's."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    characters = {chr(byte): byte for byte in shown}
    return characters | {chr(256 + number): byte for number, byte in enumerate(hidden)}
