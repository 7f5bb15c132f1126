"""What an intervention is: it proposes a trial, which follows branches until one is accepted.

The protocol, step by step, as `Answer` runs it:

1. At each position of the answer, every intervention may `propose` a `Trial`; the first that does
   so is explored.
2. The trial names what it follows, a token for each living branch, by `advance`; it is sent the
   positions after them by `extend`. Nothing of it belongs to the text yet.
3. A trial whose branches are too close may `advance` by an `Ask`, and is sent what a person chose
   by `choose`. Once `advance` returns None, it is decided.
4. `outcome` says which branch becomes the text, and how far: its positions are committed, then
   `insertion`, tokens that nobody followed before. With neither, the answer goes on as if nothing
   had been.
5. Every committed step is shown to every intervention by `observe`. That is all that an
   intervention remembers, so an answer that is taken up again from its steps goes on as it would
   have.

Nothing here knows MLX.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ...step import Fork, Origin, Step
from ..position import Position
from ..requests import Advance, Ask
from ..writer import Record
from .prose import Place, Surroundings

if TYPE_CHECKING:  # an answer is run without MLX, too
    from mlx_lm.tokenizer_utils import TokenizerWrapper

TAIL = 8
"""Tokens before a place with which the one that is drawn there is decoded."""
_WORD = re.compile(r"\w+")


class Intervention(Protocol):
    """Something that may be done in place of committing the drawn token."""

    def due(self, index: int, here: Position, room: int) -> bool:
        """Tell whether a trial would be proposed at a position, as far as that can be told cheaply.

        Args: as for `propose`.
        """

    def propose(self, index: int, here: Position, room: int) -> Trial | None:
        """Return the trial that begins at a position; None for none.

        Args:
            index: of the position in the answer.
            here: what was measured, decided and drawn there.
            room: tokens that the model's context still holds.
        """

    def observe(self, step: Step) -> None:
        """Take note of a committed step."""


class Trial(ABC):
    """Branches that are followed from a position on, until one of them is accepted."""

    branches: int
    """How many there are."""

    @abstractmethod
    def advance(self) -> Advance | Ask | None:
        """Return the next token of each living branch; None where the trial is decided."""

    @abstractmethod
    def extend(self, found: Sequence[Position]) -> None:
        """Take the positions after the tokens of the last `Advance`, in their order."""

    def choose(self, fork: Fork) -> None:
        """Take the fork of the last `Ask` as a person decided it; only for trials that ask."""
        raise NotImplementedError

    @abstractmethod
    def outcome(self, cancelled: bool) -> Outcome:
        """Return what becomes of the branches.

        Args:
            cancelled: whether the answer was cancelled before the trial was decided.
        """


@dataclass(frozen=True)
class Outcome:
    """What a trial decided on."""

    branch: int = 0
    """The branch that becomes the text."""
    positions: Sequence[Position] = ()
    """Its tokens, as far as they are to be committed."""
    origins: Sequence[Origin] = ()
    """Where each of them came from."""
    record: Record = Record()
    """What the first committed step says of the trial."""
    after: Position | None = None
    """The position after the last of them, if that is known."""
    until_due: bool = False
    """Whether to commit only up to the first position at which an intervention is due."""
    insertion: Sequence[int] = ()
    """Tokens to commit afterwards."""
    insertion_origin: Origin = Origin.INSERTED


class Allowance:
    """How often an intervention may begin in an answer, and how far apart."""

    def __init__(self, most: int, min_gap: int) -> None:
        """Allow `most` in all, `min_gap` tokens apart."""
        self._most = most
        self._min_gap = min_gap
        self._earliest = 0
        self.count = 0

    def allows(self, index: int) -> bool:
        """Tell whether one may begin at a position of the answer."""
        return self.count < self._most and index >= self._earliest

    def begin(self) -> None:
        """Count one more."""
        self.count += 1

    def cover(self, index: int) -> None:
        """Note that a token of one stands at a position."""
        self._earliest = index + 1 + self._min_gap


class Trigger:
    """An insertion that was triggered and waits for a place that suits it."""

    def __init__(self, wait: int) -> None:
        """Remember a trigger for `wait` tokens."""
        self._wait = wait
        self._index: int | None = None

    def fire(self, index: int) -> None:
        """Ask for an insertion from a position of the answer on."""
        self._index = index

    def at(self, index: int) -> int | None:
        """Return where it fired, if it is still remembered at a position."""
        if self._index is None or index > self._index + self._wait:
            return None
        return self._index

    def reset(self) -> None:
        """Forget it."""
        self._index = None


class AnswerText:
    """The answer so far, as far as it decides what may be inserted after it."""

    def __init__(self, tokenizer: TokenizerWrapper) -> None:
        self.tokens: list[int] = []
        self._tokenizer = tokenizer
        self._surroundings = Surroundings()
        self._text = ""

    @property
    def paragraph(self) -> str:
        """The text since the last blank line."""
        begun = self._text.rstrip("\n").rfind("\n\n")
        return self._text[begun + 2 :] if begun >= 0 else self._text

    def observe(self, step: Step) -> None:
        """Go on with a committed step."""
        self.tokens.append(step.token)
        self._surroundings.add(step.text)
        self._text += step.text

    def place(self, drawn: int) -> Place | None:
        """Return what place the end of the answer is, with the token that was drawn to follow."""
        if drawn in self._tokenizer.eos_token_ids:
            return None
        tail = self.tokens[-TAIL:]
        before = self._tokenizer.decode(tail)
        return self._surroundings.place(self._tokenizer.decode([*tail, drawn])[len(before) :])

    def repeats(self, text: str) -> bool:
        """Tell whether the answer says already what is to be inserted."""
        if not text.strip():
            return self._text.endswith("\n")
        return contains(words_of(self._text), words_of(text))


def text_of(tokenizer: TokenizerWrapper, tokens: Sequence[int]) -> str:
    """Return the text of some tokens, without the one that ends an answer."""
    ends = tokenizer.eos_token_ids
    return str(tokenizer.decode([token for token in tokens if token not in ends]))


def words_of(text: str) -> list[str]:
    """Return the words of a text, whose case does not count."""
    return _WORD.findall(text.casefold())


def contains(words: Sequence[str], part: Sequence[str]) -> bool:
    """Tell whether some words follow one another among others."""
    length = len(part)
    return any(list(words[at : at + length]) == list(part) for at in range(len(words)))
