"""Prompts on their way to the model's thread, and the events that it reports of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..answer.position import Likelihood
from ..settings import Settings
from ..step import Step

Prompts = Sequence[tuple[Sequence[int], Settings]]
"""The token ids and the settings of each answer; the settings have a seed, and a profile itself."""


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


@dataclass(frozen=True)
class Failed:
    """All answers of the request end here."""

    error: Exception


Event = Begun | Stepped | Ended | Failed
Report = Callable[[list[Event]], None]
"""Takes the events since the last call, on the model's thread."""


class Submission:
    """The prompts of one request, in the hands of the model's thread.

    Attributes:
        prompts: one an answer.
        forced: tokens that each answer begins with, whatever would be drawn.
        scored: whether the prompts' own tokens are scored, too.
        began: when it was submitted, by ``time.perf_counter``.
        cancel: ends all answers before their next token; set it from any thread.
    """

    def __init__(
        self, prompts: Prompts, report: Report, *, forced: Sequence[int] = (), scored: bool = False
    ) -> None:
        self.prompts = tuple(prompts)
        self.forced = tuple(forced)
        self.scored = scored
        self.began = time.perf_counter()
        self.cancel = threading.Event()
        self._report = report
        self._events: list[Event] = []
        self._failed = False

    def add(self, event: Event) -> None:
        """Add an event, to be reported with the next `flush`; none follows a failure."""
        if self._failed:
            return
        self._events.append(event)
        if isinstance(event, Failed):
            self._failed = True
            self.cancel.set()

    def flush(self) -> None:
        """Report the events that were added."""
        if self._events:
            events, self._events = self._events, []
            self._report(events)
