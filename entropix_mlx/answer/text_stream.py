"""Turning tokens into text one by one, up to a stop string.

The pieces add up to what decoding all at once gives.

A character may take several tokens, and what a token becomes may depend on those before it: many
tokenizers drop the space before the first word of a text, but of no other. So each new token is
decoded together with a few before it, and the text that is there already is taken off.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # an answer is run without MLX, too
    from mlx_lm.tokenizer_utils import TokenizerWrapper

_CONTEXT = 16  # tokens of the prompt that the first token is decoded with
_LONGEST_WINDOW = 16  # tokens that are decoded for each new one; moving it costs decoding twice
_UNFINISHED = "\ufffd"  # what a decoder writes for bytes that are no character, or not yet
_MOST_UNFINISHED = 64  # tokens in a row that may be waited for: no character takes so many
_BYTE = re.compile("<0x[0-9A-F]{2}>")
"""A token of SentencePiece for one byte. If a run of them ends in the middle of a character, every
byte in it becomes a replacement character."""
_MOST_BYTES = 32  # in a row that may be waited for: some scripts are written with nothing else


class TextStream:
    """The text of an answer, as it grows: what `add` and `finish` return adds up to
    ``decode(prompt + answer)`` without ``decode(prompt)``. Neither spaces before punctuation nor
    special tokens are left out."""

    def __init__(self, tokenizer: TokenizerWrapper, prompt: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._has_bytes = self._is_byte(tokenizer.convert_tokens_to_ids("<0x00>"))
        # The window: tokens whose text was returned, and after those the ones that wait.
        self._window = list(prompt[-_CONTEXT:])
        self._shown = len(self._window)
        self._shown_text = self._decode()

    def add(self, token: int) -> str:
        self._window.append(token)
        waiting = len(self._window) - self._shown
        if self._has_bytes and waiting < _MOST_BYTES and self._is_byte(token):
            return ""
        text = self._decode()
        if waiting < _MOST_UNFINISHED and text.endswith(_UNFINISHED):
            return ""
        return self._show(text)

    def finish(self) -> str:
        return self._show(self._decode())

    def _show(self, text: str) -> str:
        shown = self._shown_text
        if not text.startswith(shown):  # the prompt ended in the middle of a character
            shown = shown.rstrip(_UNFINISHED)
        new = text[len(shown) :]
        if new:
            last, self._shown, self._shown_text = self._shown, len(self._window), text
            if self._shown > _LONGEST_WINDOW:  # the last piece begins with a whole character
                del self._window[:last]
                self._shown = len(self._window)
                self._shown_text = self._decode()
        elif self._shown:  # tokens without any text, as ids beyond the vocabulary
            del self._window[self._shown :]
        return new

    def _decode(self) -> str:
        # Passed on in full: a tokenizer's own settings may say otherwise.
        text = self._tokenizer.decode(
            self._window, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return str(text)

    def _is_byte(self, token: int | None) -> bool:
        if token is None:
            return False
        return bool(_BYTE.fullmatch(str(self._tokenizer.convert_ids_to_tokens(token))))


class StopStrings:
    """Holds text back until no stop string can begin in it any more."""

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.found = False  # whether a stop string has come; no text follows it

    def resume(self, text: str, shown: str) -> None:
        held = self._held + text
        self._held = held.removeprefix(shown) if held.startswith(shown) else ""

    def add(self, text: str) -> str:
        """Return the text that is certain now, after more has come. The stop string that is
        complete first ends it; of two that end together, the longer one."""
        if self.found:
            return ""
        held = self._held + text
        found = [(at + len(stop), at) for stop in self._stops if (at := held.find(stop)) >= 0]
        if found:
            self.found = True
            self._held = ""
            return held[: min(found)[1]]
        certain = len(held) - self._begun(held)
        self._held = held[certain:]
        return held[:certain]

    def skip(self, text: str) -> str:
        """Return text in which no stop string is looked for, after what was held back."""
        held, self._held = self._held, ""
        return held + text

    def end(self) -> str:
        return self.skip("")

    def _begun(self, text: str) -> int:
        """Return the length of the longest beginning of a stop string that ends the text."""
        return max(
            (n for stop in self._stops for n in range(1, len(stop)) if text.endswith(stop[:n])),
            default=0,
        )
