"""Searching in a conversation."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import NamedTuple

from .conversation import Conversation


class Place(NamedTuple):
    """Where something was found."""

    turn: int
    step: int | None
    """The token of the selected answer in which it begins; None for the question."""


def find(conversation: Conversation, text: str) -> list[Place]:
    """Return where a text occurs, from the beginning on; capitals do not matter."""
    wanted = text.lower()
    if not wanted:
        return []
    places = []
    for number, turn in enumerate(conversation.turns):
        if wanted in turn.question.lower():
            places.append(Place(number, None))
        if turn.answers:
            steps = turn.answer.steps
            ends = list(accumulate(len(step.text.lower()) for step in steps))
            answer = "".join(step.text.lower() for step in steps)
            at = answer.find(wanted)
            while at >= 0:
                places.append(Place(number, bisect_right(ends, at)))
                at = answer.find(wanted, at + len(wanted))
    return places
