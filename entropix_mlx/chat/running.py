"""The answer that a session is generating."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from threading import Event

from ..step import Step
from .conversation import Conversation


@dataclass(frozen=True)
class Running:
    """An answer that was begun and may not have ended."""

    steps: Generator[Step, None, None]
    cancel: Event
    """Set it to stop the answer before its next token."""
    conversation: Conversation
    """Its last turn's selected answer is this one."""
    selected: int
    """The selected answer before this one."""
    kept: int
    """Steps that it took over from another answer."""

    def end(self) -> None:
        """End the answer; if it has no step of its own and the turn has others, remove it again."""
        self.steps.close()
        turn = self.conversation.turns[-1]
        if len(turn.answers) > 1 and len(turn.answer.steps) == self.kept:
            turn.answers.pop()
            turn.selected = self.selected
            self.conversation.bring_back(len(self.conversation.turns) - 1)
