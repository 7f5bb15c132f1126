"""What the model's thread tells the app, and what widgets tell it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.message import Message

from entropix_mlx.chat.conversation import Conversation
from entropix_mlx.profiles.profile import Profile
from entropix_mlx.step import Branch, Step

if TYPE_CHECKING:
    from .widgets.answer import AnswerView


@dataclass(frozen=True)
class Question:
    """What the user asks."""

    text: str
    turn: int | None = None
    """The turn whose question it takes the place of, None for the next one."""


@dataclass
class Loaded(Message):
    """The model is there."""

    context_length: int
    profile: Profile
    """The one that the settings mean for this model."""


@dataclass
class LoadFailed(Message):
    """The model is not there; the text says why, and what to do."""

    reason: str


@dataclass
class Prefilled(Message):
    """So much of the prompt is computed."""

    done: int
    total: int

    def can_replace(self, message: Message) -> bool:
        """A newer one makes an older one that waits needless."""
        return isinstance(message, Prefilled)


@dataclass
class ConversationChanged(Message):
    """A snapshot of the conversation, after anything but a step changed it."""

    conversation: Conversation
    context_used: int


@dataclass
class StepsArrived(Message):
    """The next steps of the answer that is running."""

    steps: list[Step]


@dataclass
class AnswerEnded(Message):
    """The answer is complete, was stopped, or failed for the reason given."""

    error: str | None = None
    refused: Question | None = None
    """What was asked, if the error kept it out of the conversation."""


@dataclass
class TurnsDropped(Message):
    """The context is full: so many of the oldest turns are left out."""

    count: int


@dataclass
class Asked(Message):
    """The sampler asks for a way at a fork; `reply` takes its index, and must be called."""

    branch: Branch
    reply: Callable[[int], None]


@dataclass
class DuelStepsArrived(Message):
    """The next steps of one side of a duel; `ended` with the last of them."""

    duel: int
    side: int
    steps: list[Step]
    ended: bool = False


@dataclass
class TokenPointed(Message):
    """The user points at a token of an answer, or clicks on it."""

    answer: AnswerView
    index: int
    clicked: bool
