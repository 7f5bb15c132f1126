"""What a prompt asks for, as far as its words tell."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # an answer is run without MLX, too
    from mlx_lm.tokenizer_utils import TokenizerWrapper

LEAST_WORDS = 2
"""A turn of fewer words is the mere head of one, such as "assistant"."""
_WORD = re.compile(r"\w+(?:-\w+)*")


def asks_for(words: Collection[str], tokenizer: TokenizerWrapper, prompt: Sequence[int]) -> bool:
    """Tell whether the request of a prompt holds one of some words, in small letters or large.

    The request is the last turn of a chat, between whose turns special tokens stand. A prompt
    without any is a request as a whole.
    """
    if not words:
        return False
    asked = _last_turn(tokenizer, prompt)
    return not asked.isdisjoint(word.casefold() for word in words)


def _last_turn(tokenizer: TokenizerWrapper, prompt: Sequence[int]) -> set[str]:
    """Return the words of the last turn that has some."""
    special = frozenset(tokenizer.all_special_ids)
    turns = [list(turn) for marks, turn in groupby(prompt, special.__contains__) if not marks]
    for turn in reversed(turns):
        words = _WORD.findall(tokenizer.decode(turn).casefold())
        if len(words) >= LEAST_WORDS:
            return set(words)
    return set()
