"""What a request wants from the model's thread, and what that thread tells of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..answer.position import Likelihood
from ..settings import Settings
from ..step import Step


@dataclass(frozen=True)
class Item:
    """One answer of an order."""

    index: int
    """Among the answers of the order."""
    prompt: tuple[int, ...]
    settings: Settings
    """With a seed and a profile that was read."""
    begin: tuple[int, ...] = ()
    """Tokens that come first, whatever would be drawn."""
    scored: bool = False
    """Whether the prompt's own tokens are to be scored, too."""


@dataclass(frozen=True)
class Begun:
    """An answer's prompt is computed."""

    index: int
    cached: int
    """Tokens of the prompt that were in the cache before."""
    scores: tuple[Likelihood, ...] = ()
    """Of the prompt's tokens after the first, if they were asked for."""


@dataclass(frozen=True)
class Came:
    """An answer's next step."""

    index: int
    step: Step


@dataclass(frozen=True)
class Ended:
    """An answer is complete."""

    index: int


@dataclass(frozen=True)
class Failed:
    """The whole order ends here."""

    error: Exception


Event = Begun | Came | Ended | Failed


class Order:
    """The answers of one request; its events come in the order in which they happened."""

    def __init__(self, items: Sequence[Item], tell: Callable[[list[Event]], None]) -> None:
        """Ask.

        Args:
            items: one an answer.
            tell: takes what happened since the last call, on the model's thread.
        """
        self.items = tuple(items)
        self.began = time.perf_counter()
        self.cancel = threading.Event()
        """Set it, from any thread, to end the order: its rows are free before the next token."""
        self._tell = tell
        self._noted: list[Event] = []
        self._failed = False

    def note(self, event: Event) -> None:
        """Add an event, to be told with the next `flush`."""
        if self._failed:
            return
        self._noted.append(event)
        if isinstance(event, Failed):
            self._failed = True
            self.cancel.set()

    def flush(self) -> None:
        """Tell what was noted."""
        if self._noted:
            noted, self._noted = self._noted, []
            self._tell(noted)
