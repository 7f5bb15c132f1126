"""What a backend's thread reports: plain records, made there and read on any other thread.

Steps come in batches, errors as sentences, and conversations as copies.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from ..answer.selection import AnswersStanding
from ..errors import EntropixError
from ..profiles.profile import Profile
from ..step import AttentionMap, DrawDistribution, Fork, Step
from .conversation import Conversation

if TYPE_CHECKING:
    from ..checkpoints.local import LocalModel

CancelToken = threading.Event
"""Cancels one job, before it begins or while it runs; made by whoever gives the job."""

BATCH_SECONDS = 1 / 15
"""Steps are reported in batches, one in this time: a screen does not need more, and each event
costs time."""

T = TypeVar("T")


@dataclass(frozen=True)
class UserMessage:
    """What the user asks."""

    text: str
    turn: int | None = None
    """The turn whose question it replaces; None asks it after the last turn."""


@dataclass(frozen=True)
class Loaded:
    """The model is ready."""

    model: str
    context_length: int
    profile: Profile
    """The one that the settings mean for this model."""


@dataclass(frozen=True)
class LoadFailed:
    """The model could not be loaded."""

    reason: str


@dataclass(frozen=True)
class ModelsListed:
    """The models on this machine."""

    models: Sequence[LocalModel]
    error: str | None = None


@dataclass(frozen=True)
class Prefilled:
    """Some of the prompt's tokens are computed."""

    done: int
    total: int


@dataclass(frozen=True)
class ConversationChanged:
    """A snapshot of the conversation, sent after every change except a new step."""

    conversation: Conversation
    context_used: int
    """Tokens that the model sees of it: those of the last prompt and of the answer so far."""


@dataclass(frozen=True)
class StepsArrived:
    """The next steps of the running answer."""

    steps: list[Step]


@dataclass(frozen=True)
class ForkGrew:
    """The answer is at a fork, whose branches have grown."""

    index: int
    """Of the fork in the answer."""
    fork: Fork
    """The branches so far; the winner is the one that leads."""


@dataclass(frozen=True)
class AnswersDrawn:
    """Another one of several answers to a question has ended."""

    standing: AnswersStanding


@dataclass(frozen=True)
class AnswerEnded:
    """A job is done: its answer is complete, was cancelled, or failed."""

    cancel: CancelToken
    """Of the job, which it identifies."""
    error: str | None = None
    refused: UserMessage | None = None
    """The question, if it did not become part of the conversation."""


@dataclass(frozen=True)
class StepRead:
    """What a token was drawn from, or what it looked at, or why that cannot be said."""

    step: Step
    found: DrawDistribution | AttentionMap | None
    error: str | None = None


@dataclass(frozen=True)
class TurnsDropped:
    """The context is full: the oldest turns are no longer in the prompt."""

    count: int


@dataclass(frozen=True)
class ChoiceNeeded:
    """The user is to choose a branch of a fork; the thread waits for `reply` or a cancel."""

    fork: Fork
    reply: Callable[[int], None]
    """Takes the index of the chosen branch."""


JobEvent = Loaded | LoadFailed | ModelsListed | Prefilled | AnswerEnded | StepRead
ChatEvent = (
    ConversationChanged | StepsArrived | AnswersDrawn | ForkGrew | TurnsDropped | ChoiceNeeded
)
Event = JobEvent | ChatEvent
Report = Callable[[Event], None]
"""Takes an event on the backend's thread."""


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
    """Return the message of an error; unexpected ones are labelled as such."""
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
