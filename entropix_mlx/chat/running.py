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
    """Set it to stop the answer before its next token."""
    turn: Turn
    """The turn whose selected answer it is."""
    selected: int
    """The turn's selected answer before this one."""
    kept: int
    """Steps that it took over from another answer."""

    def end(self) -> None:
        """End the answer; if it has no step of its own and the turn has others, remove it again."""
        self.steps.close()
        if len(self.turn.answers) > 1 and len(self.turn.answer.steps) == self.kept:
            self.turn.answers.pop()
            self.turn.selected = self.selected
