"""What an answer may want to know next: the wants that `Answer` yields to whoever runs it.

yields                                     is sent
Follow   this token joins the text         the Position after it
Split    rollouts begin here               nothing
Roll     each rollout grows by a token     a Position for each of them
Read     a side text after the rollouts    a Position for each of them, after it
Unread   tokens to be forgotten again      nothing
Keep     a rollout becomes the text        nothing
Ask      a person is to choose a rollout   the Fork as it was chosen
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple, Protocol

from ..step import Fork
from .position import Reading

DRAWN, NOTHING = -1, -2
"""What is expected to come after a want: the token that will be drawn, or nothing at all."""


class Follow(NamedTuple):
    """This token joins the text: what may come next?"""

    token: int
    logprob: float | None
    """Its log probability where it stands; None for the last token of the prompt."""
    then: int = DRAWN
    """What to queue after it ahead of time: a token that is known, `DRAWN`, or `NOTHING`."""
    side: bool = False
    """Whether it is part of a side text, which leaves no trace."""

    @property
    def taken(self) -> dict[int, int]:
        """The token that the text takes, whose only row has the number 0."""
        return {0: self.token}


class Split(NamedTuple):
    """From here on there are so many rollouts, numbered from 0, until one of them is kept."""

    branches: int


class Roll(NamedTuple):
    """These rollouts grow by a token each: what may come next in each? The others have stopped."""

    branches: tuple[int, ...]
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    """Of those tokens; None for those of a side text."""
    then: int = DRAWN

    @property
    def side(self) -> bool:
        """Whether they are part of a side text, which leaves no trace."""
        return self.logprobs is None

    @property
    def taken(self) -> dict[int, int]:
        """The token that each rollout takes."""
        return dict(zip(self.branches, self.tokens, strict=True))


class Read(NamedTuple):
    """A side text is put after rollouts, or after the text where there are none.

    What may come after it is measured, and then it is forgotten."""

    tokens: tuple[int, ...]
    after: tuple[int | None, ...] = ()
    """The last token of each rollout, which is not in the cache yet; None where it is."""
    branches: tuple[int, ...] = ()
    """Which ones; () for all of them, in order."""


class Unread(NamedTuple):
    """The last tokens of some rollouts, or of the text where there are none, are forgotten."""

    length: int
    branches: tuple[int, ...] = ()


class Keep(NamedTuple):
    """The first tokens of a rollout, perhaps none, join the text; no rollout is left."""

    branch: int
    tokens: tuple[int, ...]


class Ask(NamedTuple):
    """A person is to choose among the rollouts."""

    fork: Fork


Want = Follow | Split | Roll | Read | Unread | Keep | Ask
Life = Generator[Want, Any, None]


class Position(Protocol):
    """What is known about the place after a token."""

    @property
    def reading(self) -> Reading:
        """What was measured, decided and drawn there."""

    def given(self, tokens: Sequence[int]) -> list[Reading]:
        """Return the reading with each of some tokens in place of the one that was drawn."""

    def openings(self, count: int) -> list[int]:
        """Return different tokens that may stand here, the most probable one first."""
