"""What a caller may hand to a generation besides its settings: functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Event

from ..step import Fork, Passage

Choose = Callable[[Fork], int]
"""Asked for the index of a branch; `winner` is the one that would be taken unasked."""

OnFork = Callable[[int, Fork], None]
"""Called with a fork's index in the answer, and the fork so far: `winner` would be taken now."""

Retrieve = Callable[[str], Sequence[Passage]]
"""Called with a sentence in which the model is lost, which may be empty; returns passages that may
be put into the answer, the best first. `Notes.about` makes one."""


@dataclass(frozen=True)
class Hooks:
    """How a caller stops, watches and steers a generation. Raises `TypeError` if one is wrong."""

    cancel: Event | None = None  # set it, from any thread, to stop before the next token
    on_prefill: Callable[[int, int], None] | None = None
    """Called with the prompt tokens processed so far and their number."""
    choose: Choose | None = None  # decides where two branches are too close to call, see `Choose`
    on_fork: OnFork | None = None  # called while branches grow, see `OnFork`
    retrieve: Retrieve | None = None  # looks things up where the model is lost, see `Retrieve`

    def __post_init__(self) -> None:
        if self.cancel is not None and not callable(getattr(self.cancel, "is_set", None)):
            raise TypeError(f"cancel must be a threading.Event, not {self.cancel!r:.60}")
        for name in ("on_prefill", "choose", "on_fork", "retrieve"):
            hook = getattr(self, name)
            if hook is not None and not callable(hook):
                raise TypeError(f"{name} must be a function, not {hook!r:.60}")

    def cancelled(self) -> bool:
        return self.cancel is not None and self.cancel.is_set()
