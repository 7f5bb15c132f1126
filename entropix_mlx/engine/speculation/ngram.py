"""N-gram speculation: what followed the last tokens before is proposed to follow them again.

Where an answer copies from its prompt or from itself, the next tokens stand in the text already.
`NgramProposer` finds them by an index that grows with every token: what followed the last 4, 3 or 2
tokens where they stood last. Once found, that place is followed from token to token.

A copy with a change in it loses its place at the change. So the search goes on behind the lost
place, as if one token had been replaced by another, and looks for the newest token among those that
follow there:

    the text before    the  quick  brown  fox  jumpd  over  the  lazy  dog
    the answer         the  quick  brown  fox  jumped over
                                               lost   found again: the lazy dog

Acceptance is tracked per match length: a running mean over the answer so far, including positions
where nothing was proposed. So a text without repetition is not slowed down.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from .proposer import Lengths

SHORTEST, LONGEST = 2, 4
"""Tokens that must match before what followed them is proposed: the longest match counts."""
FIRST_RATES = {0: 0.25, 1: 0.4, 2: 0.4, 3: 0.5, 4: 0.7, 8: 0.85}
"""Acceptance by match length, or more, before any proposal was compared. With 0 the last token was
taken for another one, and 1 was found behind a lost place."""
_LEVELS = tuple(FIRST_RATES)
DECAY = 0.1
"""The weight of the newest token in that mean."""
NEAR = 12
"""Tokens behind a lost place in which the newest token is looked for."""
PATIENCE = 4
"""Tokens after which a lost place is forgotten."""


class NgramProposer:
    """The index of one text, and the acceptance of what was proposed from it."""

    needs_last_token = False

    def __init__(self, lengths: Lengths) -> None:
        self._lengths = lengths
        self._tokens: list[int] = []
        self._ends: dict[tuple[int, ...], int] = {}
        """Where the last tokens of each kind ended when they were seen last."""
        self._next: int | None = None
        """Where what followed the last tokens begins."""
        self._matched = 0
        """How many of the last tokens match those before it."""
        self._lost: int | None = None
        """The place that did not go on as the text did."""
        self._since = 0
        """Tokens since then."""
        self._rates = dict(FIRST_RATES)

    def propose(self, tokens: Sequence[int], ahead: int = 0, alone: bool = True) -> list[int]:
        """As in `Proposer`.

        The first call is given the prompt: whether that repeats itself says little of the answer.
        """
        answered = bool(self._tokens)
        for token in tokens[len(self._tokens) :]:
            self._add(token, answered)
        if self._next is None:
            return []
        most = ahead + self._lengths.longest
        rates = [self._rates[_level(self._matched + number)] for number in range(most)]
        return self._continued(ahead + self._lengths.best(rates, ahead, alone))[ahead:]

    def close(self) -> None:
        """Do nothing: the index is this answer's alone."""

    def _add(self, token: int, answered: bool) -> None:
        place, matched = self._next, self._matched
        accepted = place is not None and self._tokens[place] == token
        if place is not None and answered:
            level = _level(matched)
            self._rates[level] += DECAY * (accepted - self._rates[level])
        if place is not None and not accepted and matched >= SHORTEST:
            self._lost, self._since = place, 0
        self._tokens.append(token)
        self._next, self._matched = self._found()
        if accepted and place is not None and matched + 1 >= self._matched:
            self._next, self._matched = place + 1, matched + 1
        if self._next is None and self._lost is not None and answered:
            self._next, self._matched = self._near(token)
            self._since += 1
        if self._matched >= SHORTEST or self._since > PATIENCE:
            self._lost = None

    def _found(self) -> tuple[int | None, int]:
        found: int | None = None
        matched = 0
        for length in range(SHORTEST, min(LONGEST, len(self._tokens)) + 1):
            last = tuple(self._tokens[-length:])
            if (place := self._ends.get(last)) is not None:
                found, matched = place, length
            self._ends[last] = len(self._tokens)
        return found, matched

    def _near(self, token: int) -> tuple[int | None, int]:
        """Return where what follows the newest token may stand, close behind the lost place."""
        if self._lost is None:
            return None, 0
        end = min(self._lost + NEAR + self._since, len(self._tokens) - 1)
        begin = self._lost + (self._since == 0)
        for place in range(begin, end):
            if self._tokens[place] == token:
                return place + 1, 1
        skipped = self._lost + self._since + 1
        return (skipped, 0) if skipped < len(self._tokens) else (None, 0)

    def _continued(self, count: int) -> list[int]:
        """Return `count` tokens from where the last ones stood before.

        Where that reaches the end of the text, the text repeats itself, and so does the proposal.
        """
        begin = len(self._tokens) if self._next is None else self._next
        period = len(self._tokens) - begin
        return [self._tokens[begin + number % period] for number in range(count)]


def _level(matched: int) -> int:
    return _LEVELS[bisect_right(_LEVELS, matched) - 1]
