"""Writing a stranger's text into an answer so that it stays a quotation.

A passage of a user's notes may have been written by anybody. It is put on one line, without control
characters and without the quotation marks that end it, and what a chat template means by a turn's
begin or end is broken up, so that it is read as text.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # an answer is run without MLX, too
    from mlx_lm.tokenizer_utils import TokenizerWrapper

_MARKER = re.compile(
    r"<[|｜][^<>]{0,40}[|｜]>|<\|\w+|</?s>|\[/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_\w+)\]"
    r"|<</?SYS>>|</?(?:start_of_turn|end_of_turn|think|tool_call|tool_response)>",
    re.IGNORECASE,
)
"""What chat templates write around turns, also where it is no token of the model's own."""
_QUOTES = str.maketrans('“”„‟"', "‘’‚‛'")


def on_one_line(text: str) -> str:
    """Return a text without control and other invisible characters, and with single spaces."""
    visible = (" " if unicodedata.category(sign)[0] == "C" else sign for sign in text)
    return " ".join("".join(visible).split())


def quotable(text: str, tokenizer: TokenizerWrapper) -> str:
    """Return a text as it may stand between quotation marks; the meaning of no marker is left."""
    text = on_one_line(text).translate(_QUOTES)
    for marker in sorted(_added(tokenizer), key=len, reverse=True):
        text = text.replace(marker, _broken(marker))
    return _MARKER.sub(lambda found: _broken(found[0]), text)


def has_marker(tokens: Iterable[int], tokenizer: TokenizerWrapper) -> bool:
    """Tell whether a special token is among some tokens, so that they are no plain text."""
    return not _special(tokenizer).isdisjoint(tokens)


def _broken(marker: str) -> str:
    """Return a marker with a space after its first sign: ``< |im_end|>``."""
    return f"{marker[:1]} {marker[1:]}"


def _added(tokenizer: TokenizerWrapper) -> list[str]:
    """Return the texts of the tokens that stand outside the vocabulary of ordinary text."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    texts = [str(token) for token in added.values()]
    return [text for text in texts if len(text) > 1 and text.strip()]


def _special(tokenizer: TokenizerWrapper) -> set[int]:
    return {*getattr(tokenizer, "all_special_ids", ()), *tokenizer.eos_token_ids}
