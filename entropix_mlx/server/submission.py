"""The answers to one request on their way: its submission, and the events that come back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..answer.position import Likelihood
from ..settings import Settings
from ..step import Step

if TYPE_CHECKING:
    from .model_runner import ModelRunner


@dataclass(frozen=True)
class Begun:
    """An answer's prompt is computed."""

    index: int
    """Of the answer among those of its request."""
    cached: int
    """Tokens of the prompt that were in the cache before."""
    scores: tuple[Likelihood, ...] = ()
    """Of the prompt's tokens after the first, if they were asked for."""


@dataclass(frozen=True)
class Stepped:
    """An answer has its next step."""

    index: int
    step: Step


@dataclass(frozen=True)
class Ended:
    """An answer is complete."""

    index: int
    several: dict[str, Any] | None = None
    """All answers among which it was chosen, if there were several."""


@dataclass(frozen=True)
class Failed:
    """All answers of the request end here."""

    error: Exception


Event = Begun | Stepped | Ended | Failed


@dataclass(eq=False)
class Submission:
    """The answers to one request, from its place in the queue to the model's thread."""

    runner: ModelRunner
    """Of the model that is asked."""
    answers: int
    report: Callable[[list[Event]], None]
    """Takes the events since the last call, on the model's thread."""
    forced: Sequence[int] = ()
    """Tokens that each answer begins with, whatever would be drawn."""
    client: str = ""
    """Who asks: clients share the places for answers."""
    unread: Callable[[], int] = lambda: 0
    """Returns how many reports whoever asks is behind."""
    scored: bool = False
    """Whether the prompts' own tokens are scored, too."""
    cancel: threading.Event = field(default_factory=threading.Event)
    """Ends all answers before their next token; set it from any thread."""
    began: float = field(default_factory=time.perf_counter)
    prompts: Sequence[tuple[Sequence[int], Settings]] = ()
    """The token ids and the settings of each answer, once they are known."""
    left: int = field(init=False)
    """Answers that have not ended."""
    _events: list[Event] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.left = self.answers

    def add(self, event: Event) -> None:
        """Add an event, to be reported with the next `flush`; none follows the end of all."""
        if not self.left:
            return
        self._events.append(event)
        if isinstance(event, Failed):
            self.left = 0
            self.cancel.set()
        elif isinstance(event, Ended):
            self.left -= 1

    def flush(self) -> None:
        if self._events:
            events, self._events = self._events, []
            self.report(events)

    def fail(self, error: Exception) -> None:
        self.add(Failed(error))
        self.flush()
