"""N-gram speculation: where a text repeats itself, the tokens that came next are proposed.

    text       … the old man and the sea. … the old man      what follows the same tokens
    proposed                                             and the sea .

One pass checks all of them; those that the sampler would have drawn are kept.
"""

from __future__ import annotations

from collections.abc import Sequence as Tokens
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..models.base import LanguageModel

SAME = 3  # tokens in a row that must have stood before
FIRST = 3  # tokens that are proposed first; twice as many after each proposal that was right
MOST = 15
LONGEST_PAUSE = 32  # tokens without a proposal after several that were wrong
CHECKED = 8  # tokens of the pass whose cost decides whether proposing tokens is worth it
RIGHT = 0.7  # the share of proposed tokens that is expected to be right


def longest_proposal(mode: int | str, model: LanguageModel) -> int:
    """Return the most tokens to propose at once; 0 where checking them takes too long.

    Args:
        mode: as in `Settings.speculation`; a number is taken without asking what it costs.
    """
    if isinstance(mode, int):
        return mode
    return MOST if model.block_cost(CHECKED) < 1 + RIGHT * (CHECKED - 1) else 0


class Speculation:
    """What is proposed for one text."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._length = min(FIRST, most)
        self._wrong = self._pause = 0
        self._text: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}  # where what follows each n-gram begins

    def follow(self, tokens: Tokens[int]) -> None:
        """Let the text grow to these tokens."""
        added = len(tokens) - len(self._text)
        self._pause = max(0, self._pause - added)
        for token in tokens[len(self._text) :]:
            # The n-gram at the very end is left out: nothing follows it yet.
            if len(self._text) >= SAME:
                self._after[tuple(self._text[-SAME:])] = len(self._text)
            self._text.append(token)

    def propose(self) -> list[int]:
        """Return the tokens that may follow the text."""
        if self._pause or not self._most:
            return []
        begin = self._after.get(tuple(self._text[-SAME:]))
        if begin is None:
            return []
        found: list[int] = []
        for place in range(begin, begin + self._length):  # what is proposed may repeat itself, too
            beyond = place - len(self._text)
            found.append(self._text[place] if beyond < 0 else found[beyond])
        return found

    def receive(self, proposed: int, accepted: int) -> None:
        """Learn how many of the proposed tokens were right."""
        if accepted == proposed:
            self._wrong = 0
            self._length = min(2 * self._length, self._most)
        elif accepted:
            self._wrong = 0
            self._length = max(FIRST, accepted)
        else:
            self._wrong += 1
            self._length = min(FIRST, self._most)
            self._pause = min(2**self._wrong, LONGEST_PAUSE)
