"""What a `ChatThread` reports: plain records, made there and read on any other thread.

Steps come in batches, errors as sentences, and conversations as copies.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..answer.selection import AnswersStanding
from ..profiles.profile import Profile
from ..step import AttentionMap, DrawDistribution, Fork, Step
from .conversation import Conversation

if TYPE_CHECKING:
    from ..checkpoints.local import LocalModel

CancelToken = threading.Event  # cancels one job, before it begins or while it runs


@dataclass(frozen=True)
class UserMessage:
    """What the user asks."""

    text: str
    turn: int | None = None  # the turn whose question it replaces; None asks it after the last turn


@dataclass(frozen=True)
class Loaded:
    """The model is ready."""

    model: str
    context_length: int
    profile: Profile  # the profile that the settings mean for this model


@dataclass(frozen=True)
class ThresholdsReady:
    """Thresholds for the model have been learned, and `ChatThread.accept_thresholds` uses them."""


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


@dataclass(frozen=True)
class StepsArrived:
    """The running answer has grown."""

    steps: list[Step]


@dataclass(frozen=True)
class ForkGrew:
    """The answer is at a fork, whose branches have grown."""

    index: int  # of the fork in the answer
    fork: Fork  # the branches so far; the winner is the one that leads


@dataclass(frozen=True)
class AnswersDrawn:
    """Another one of several answers to a question has ended."""

    standing: AnswersStanding


@dataclass(frozen=True)
class AnswerEnded:
    """A job is done: its answer is complete, was cancelled, or failed."""

    cancel: CancelToken  # of the job, which it identifies
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
    reply: Callable[[int], None]  # takes the index of the chosen branch


JobEvent = Loaded | LoadFailed | ThresholdsReady | ModelsListed | Prefilled | AnswerEnded | StepRead
ChatEvent = (
    ConversationChanged | StepsArrived | AnswersDrawn | ForkGrew | TurnsDropped | ChoiceNeeded
)
Event = JobEvent | ChatEvent
Report = Callable[[Event], None]  # takes an event, on the thread
