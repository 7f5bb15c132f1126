"""What a thread tells another: steps in batches, errors as sentences, conversations as copies."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TypeVar

from ..chat.conversation import Conversation
from ..errors import EntropixError

BATCH_SECONDS = 1 / 15
"""Steps are reported in batches, one in this time: a screen does not need more, and each event
costs time."""

T = TypeVar("T")


def batches(steps: Iterable[T]) -> Iterator[list[T]]:
    """Gather steps until `BATCH_SECONDS` have passed; the first one comes at once."""
    batch: list[T] = []
    due = time.monotonic()
    for step in steps:
        batch.append(step)
        if time.monotonic() >= due:
            yield batch
            batch, due = [], time.monotonic() + BATCH_SECONDS
    if batch:
        yield batch


def explain(error: Exception) -> str:
    """Return what the user is told of an error; unexpected ones are labelled as such."""
    if isinstance(error, EntropixError):
        return str(error)
    return f"unexpected {type(error).__name__}: {error}"


def snapshot(conversation: Conversation) -> Conversation:
    """Return a copy that another thread can keep; steps never change, so they are shared."""
    turns = [
        replace(turn, answers=[replace(a, steps=list(a.steps)) for a in turn.answers])
        for turn in conversation.turns
    ]
    return replace(conversation, turns=turns)
