"""What the model's thread tells: plain records, made there and read on any other thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..chat.conversation import Conversation
from ..profiles.profile import Profile
from ..step import Fork, Step
from ..traces.trace import Header

if TYPE_CHECKING:
    from ..checkpoints.inventory import LocalModel

Token = threading.Event
"""Cancels one job, before it begins or while it runs; made by whoever gives the job."""


@dataclass(frozen=True)
class Question:
    """What the user asks."""

    text: str
    turn: int | None = None
    """The turn whose question it replaces; None asks it after the last turn."""


@dataclass(frozen=True)
class Loaded:
    """The model is ready."""

    model: str
    """Its name, for people."""
    context_length: int
    """The most tokens that the model can hold."""
    profile: Profile
    """The one that the settings mean for this model."""


@dataclass(frozen=True)
class LoadFailed:
    """The model could not be loaded; the text says why, and what to do."""

    reason: str


@dataclass(frozen=True)
class ModelsListed:
    """What models there are on this machine."""

    models: Sequence[LocalModel]
    error: str | None = None
    """Why they could not be listed."""


@dataclass(frozen=True)
class Prefilled:
    """So many of the prompt's tokens are computed."""

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
    """The answer is at a fork, whose ways have grown."""

    index: int
    """Of the fork in the answer."""
    fork: Fork
    """The ways as far as they are known; its winner is the one that leads."""


@dataclass(frozen=True)
class AnswerEnded:
    """A job is done: its answer is complete, was cancelled, or failed."""

    cancel: Token
    """The cancel token that the job was given; it tells one job from another."""
    error: str | None = None
    """Why it failed."""
    refused: Question | None = None
    """The question, if the error kept it out of the conversation."""


@dataclass(frozen=True)
class TurnsDropped:
    """The context is full: so many of the oldest turns are no longer in the prompt."""

    count: int


@dataclass(frozen=True)
class Asked:
    """The user is to choose a way at a fork; the thread waits for `reply` or a cancel."""

    fork: Fork
    reply: Callable[[int], None]
    """Takes the index of the chosen rollout."""


@dataclass(frozen=True)
class DuelBegan:
    """Both sides of a duel are about to answer."""

    cancel: Token
    """The cancel token that the duel was given; it tells one duel from another."""
    headers: tuple[Header | None, ...]
    """How a trace of each side begins; None for one that cannot begin."""


@dataclass(frozen=True)
class DuelStepsArrived:
    """The next steps of one side of a duel."""

    cancel: Token
    """The cancel token that the duel was given; it tells one duel from another."""
    side: int
    """0 or 1."""
    steps: list[Step]
    ended: bool = False
    """Whether no more of this side will come."""
    error: str | None = None
    """Why this side failed; the other one goes on."""


@dataclass(frozen=True)
class DuelForkGrew:
    """A side of a duel is at a fork, whose ways have grown."""

    cancel: Token
    """The cancel token that the duel was given; it tells one duel from another."""
    side: int
    """0 or 1."""
    fork: Fork
    """The ways as far as they are known; its winner is the one that leads."""


OfDuel = DuelBegan | DuelStepsArrived | DuelForkGrew
"""What only the screen of a duel wants to know."""
Event = (
    Loaded
    | LoadFailed
    | ModelsListed
    | Prefilled
    | ConversationChanged
    | StepsArrived
    | ForkGrew
    | AnswerEnded
    | TurnsDropped
    | Asked
    | OfDuel
)
