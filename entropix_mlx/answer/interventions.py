"""Interventions: what may be done at a position in place of committing the drawn token.

An intervention is a callable of the answer so far (`AnswerSoFar`) and the row at its end. It
returns an `Insertion`, a `ForkTrial` (`forks.py`) or None. Every committed step is shown to it by
`observe`, which is all that it remembers: an answer that is resumed from its steps goes on as it
would have.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ..samplers.row import Row
from ..step import Origin, Step
from .sentences import Lines

if TYPE_CHECKING:  # an answer is tested without MLX
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from .forks import ForkTrial

TAIL = 8  # tokens before a place with which the one that is drawn there is decoded
_WORD = re.compile(r"\w+")


class Insertion(NamedTuple):
    """Tokens to commit in place of what would be drawn."""

    tokens: Sequence[int]
    origin: Origin = Origin.INSERTED
    about: Mapping[str, Any] = {}  # fields of the first token's `Step`: `triggered_at`, `source`


class AnswerSoFar(Protocol):
    """What interventions see of an answer."""

    tokenizer: TokenizerWrapper
    prompt: list[int]
    tokens: list[int]  # of the answer
    text: str  # of the answer, as far as it is known to be complete characters
    lines: Lines
    room: int  # tokens that the model's context still holds

    @property
    def index(self) -> int: ...


def may_be_interrupted(answer: AnswerSoFar, drawn: int) -> bool:
    """Tell whether something may be inserted before a drawn token: see `Lines`."""
    if not answer.tokens or drawn in answer.tokenizer.eos_token_ids:
        return False
    tail = answer.tokens[-TAIL:]
    before = answer.tokenizer.decode(tail)
    return answer.lines.may_be_interrupted(answer.tokenizer.decode([*tail, drawn])[len(before) :])


class Intervention(Protocol):
    """See the module."""

    @property
    def active(self) -> bool:
        """Whether it may still ask for another token than the drawn one."""

    def __call__(self, answer: AnswerSoFar, row: Row) -> Insertion | ForkTrial | None:
        """Return what to do at a position, None for nothing."""

    def observe(self, step: Step) -> None: ...


class Allowance:
    """How often an intervention may begin in an answer, and how far apart."""

    def __init__(self, most: int, min_gap: int) -> None:
        self._most = most
        self._min_gap = min_gap
        self._earliest = 0
        self.count = 0

    @property
    def left(self) -> bool:
        return self.count < self._most

    def allows(self, index: int) -> bool:
        return self.left and index >= self._earliest

    def begin(self) -> None:
        self.count += 1

    def cover(self, index: int) -> None:
        self._earliest = index + 1 + self._min_gap


class Trigger:
    """An insertion that was triggered and waits for a place that suits it."""

    def __init__(self, wait: int) -> None:
        self._wait = wait
        self.index: int | None = None  # of the position where it was triggered

    def at(self, index: int) -> int | None:
        """Return where it was triggered, if it is still remembered at a position."""
        forgotten = self.index is None or index > self.index + self._wait
        return None if forgotten else self.index


def words_of(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def says(text: str, phrase: str) -> bool:
    """Tell whether a text has the words of a phrase in a row; of one without words, the phrase."""
    words, part = words_of(text), words_of(phrase)
    if not part:
        return phrase.strip() in text
    return any(words[at : at + len(part)] == part for at in range(len(words) - len(part) + 1))
