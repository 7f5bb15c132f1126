"""The protocol of interventions: one proposes a trial, which follows branches until one is
accepted.

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
    """What may be done in place of committing the drawn token.

    `Answer` calls `propose` at each position; the first intervention that returns a trial is
    followed there. Every committed step is shown to every intervention by `observe`. That is all
    that an intervention remembers, so an answer that is resumed from its steps continues as it
    would have.
    """

    def due(self, index: int, here: Position, room: int) -> bool:
        """Tell cheaply whether `propose` would probably return a trial; the same arguments."""

    def propose(self, index: int, here: Position, room: int) -> Trial | None:
        """Return the trial that begins at a position; None for none.

        Args:
            index: of the position in the answer.
            here: the position: metrics, decision and drawn token.
            room: tokens that the model's context still holds.
        """

    def observe(self, step: Step) -> None: ...


class Trial(ABC):
    """Branches that are followed from a position, until one of them is accepted.

    `Answer` runs a trial like this, where `…` is a forward pass or a person:

        while (request := trial.advance()) is not None:
            if isinstance(request, Ask):
                trial.choose(…)              # the fork as a person decided it
            else:
                trial.extend(…)              # a position after each token of the request
        outcome = trial.outcome(cancelled)

    1. `advance` returns the next token of each living branch. The branches begin with the tokens of
       the first `Advance`; nothing of them belongs to the text yet.
    2. `extend` receives the positions after these tokens, in their order.
    3. A trial may return an `Ask` instead, and receives the decision by `choose`.
    4. Once `advance` returns None, or the answer is cancelled, `outcome` says what becomes of the
       branches. The positions of one are committed, then an insertion that nobody followed. With
       neither, the answer continues with the token that was drawn.
    """

    branches: int
    """The number of branches, known from the start."""

    @abstractmethod
    def advance(self) -> Advance | Ask | None:
        """Return the next token of each living branch; None where the trial is decided."""

    @abstractmethod
    def extend(self, found: Sequence[Position]) -> None:
        """Receive the positions after the tokens of the last `Advance`, in their order."""

    def choose(self, fork: Fork) -> None:
        """Receive the fork of the last `Ask` as a person decided it; only for trials that ask."""
        raise NotImplementedError

    @abstractmethod
    def outcome(self, cancelled: bool) -> Outcome:
        """Return what becomes of the branches; the trial may have been cancelled undecided."""


@dataclass(frozen=True)
class Outcome:
    """The decision of a trial."""

    branch: int = 0
    """The branch that becomes the text."""
    positions: Sequence[Position] = ()
    """Its tokens, as far as they are to be committed."""
    origins: Sequence[Origin] = ()
    """The origin of each of them."""
    record: Record = Record()
    """What the first committed step records of the trial."""
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
        self._most = most
        self._min_gap = min_gap
        self._earliest = 0
        self.count = 0

    def allows(self, index: int) -> bool:
        return self.count < self._most and index >= self._earliest

    def begin(self) -> None:
        self.count += 1

    def cover(self, index: int) -> None:
        self._earliest = index + 1 + self._min_gap


class Trigger:
    """An insertion that was triggered and waits for a place that suits it."""

    def __init__(self, wait: int) -> None:
        self._wait = wait
        self._index: int | None = None

    def fire(self, index: int) -> None:
        self._index = index

    def at(self, index: int) -> int | None:
        """Return where it fired, if it is still remembered at a position."""
        if self._index is None or index > self._index + self._wait:
            return None
        return self._index

    def reset(self) -> None:
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
        begun = self._text.rstrip("\n").rfind("\n\n")
        return self._text[begun + 2 :] if begun >= 0 else self._text

    def observe(self, step: Step) -> None:
        self.tokens.append(step.token)
        self._surroundings.add(step.text)
        self._text += step.text

    def place(self, drawn: int) -> Place | None:
        if drawn in self._tokenizer.eos_token_ids:
            return None
        tail = self.tokens[-TAIL:]
        before = self._tokenizer.decode(tail)
        return self._surroundings.place(self._tokenizer.decode([*tail, drawn])[len(before) :])

    def repeats(self, text: str) -> bool:
        if not text.strip():
            return self._text.endswith("\n")
        words = words_of(text)
        return contains(words_of(self._text), words) if words else text.strip() in self._text


def text_of(tokenizer: TokenizerWrapper, tokens: Sequence[int]) -> str:
    ends = tokenizer.eos_token_ids
    return str(tokenizer.decode([token for token in tokens if token not in ends]))


def words_of(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def contains(words: Sequence[str], part: Sequence[str]) -> bool:
    length = len(part)
    return any(list(words[at : at + length]) == list(part) for at in range(len(words)))
