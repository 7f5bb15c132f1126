"""The answer that a session is generating."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from threading import Event

from ..step import Step
from .conversation import Turn


@dataclass(frozen=True)
class Running:
    """An answer that was begun and may not have ended."""

    steps: Generator[Step, None, None]
    cancel: Event
    turn: Turn
    selected: int
    """The turn's selected answer before it."""
    kept: int
    """Steps that it took over from another answer."""

    def end(self) -> None:
        """End it; if it got no step of its own, withdraw it where the turn has other answers."""
        self.steps.close()
        if len(self.turn.answers) > 1 and len(self.turn.answer.steps) == self.kept:
            self.turn.answers.pop()
            self.turn.selected = self.selected
