"""Requests: what an answer asks of the engine, and what it is sent for each.

    request   meaning                                            is sent
    Advance   a token joins the text, or each branch that grows  a Position after each of them
    Split     branches begin at the end of the text              nothing
    Keep      the beginning of a branch becomes the text         nothing
    Ask       a person is to choose among the branches           the Fork as it was chosen

An answer is a generator of them. The engine keeps to the order in which they come:

    Advance* (Split Advance* Ask? Keep Advance)*

so between `Split` and `Keep` an `Advance` is about branches, otherwise about the text.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, NamedTuple

from ..step import Fork
from .position import Position

TEXT = 0
"""The number of the text in an `Advance`; branches are numbered from 0, too."""
DRAWN, NOTHING = -1, -2
"""What is expected to follow an `Advance`: the token that will be drawn, or nothing at all."""


class Advance(NamedTuple):
    """These tokens join the text, or the branches; what may follow each of them?"""

    tokens: Mapping[int, int]
    """By number of the branch; the branches that are not named have stopped."""
    logprobs: Sequence[float] = ()
    """Of those tokens at temperature 1; () for the last token of the prompt."""
    then: int = DRAWN
    """What to queue after them ahead of time: a token that is known, `DRAWN`, or `NOTHING`."""

    @classmethod
    def after(cls, positions: Mapping[int, Position], then: int = DRAWN) -> Advance:
        tokens = {number: position.token for number, position in positions.items()}
        return cls(tokens, [position.logprob for position in positions.values()], then)


class Split(NamedTuple):
    """From here on there are so many branches, numbered from 0, until one becomes the text."""

    branches: int


class Keep(NamedTuple):
    """The first tokens of a branch, perhaps none, join the text; no branch is left."""

    branch: int
    tokens: tuple[int, ...]


class Ask(NamedTuple):
    """A person is to choose among the branches."""

    fork: Fork


Request = Advance | Split | Keep | Ask
Requests = Generator[Request, Any, None]
