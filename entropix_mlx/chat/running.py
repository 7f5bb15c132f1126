"""The answer that a session is generating."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from threading import Event
from typing import TYPE_CHECKING

from ..answer.hooks import Retrieve
from ..notes.notes import Notes
from ..profiles.profile import Profile
from ..step import Step
from ..traces.trace import Header
from .conversation import Conversation

if TYPE_CHECKING:
    from .session import Session


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


def retrieve_of(notes: Notes | None, conversation: Conversation) -> Retrieve | None:
    """Return what looks things up for the last question, after reading what is new in the notes.

    Raises:
        NotesError: the folder cannot be read any more.
    """
    if notes is None:
        return None
    notes.refresh()
    return notes.about(conversation.last.question)


def header_of(
    session: Session, model: str, seed: int, profile: Profile, prompt_tokens: int
) -> Header:
    """Return the header for the trace of an answer.

    Args:
        session: which answers.
        model: its name, for people.
        seed: of the answer.
        profile: that decides in it.
        prompt_tokens: what precedes it.
    """
    return Header(
        model=model,
        sampler=session.settings.sampler,
        profile=profile,
        seed=seed,
        messages=session.conversation.asked,
        context_length=session.context_length,
        prompt_tokens=prompt_tokens,
        options=session.settings.options,
        notes=str(session.notes.folder.absolute()) if session.notes else "",
    )
