"""Where a question is typed: Enter sends, Shift+Enter and Ctrl+J begin a line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import TextArea

from entropix_mlx.serving.events import Question

NEW_LINE = ("shift+enter", "ctrl+j")


class Composer(TextArea):
    """A text area that sends."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "enter",
            "send",
            "Send",
            priority=True,
            tooltip="Send the question",
            id="composer.send",
        ),
        Binding(
            ",".join(NEW_LINE),
            "new_line",
            "New line",
            show=False,
            key_display="Ctrl+J",
            tooltip="New line, as Shift+Enter",
            id="composer.newline",
        ),
    ]

    @dataclass
    class Sent(Message):
        """A question is ready."""

        question: Question

    def __init__(self, *, id: str) -> None:
        """Begin empty."""
        placeholder = "Ask something. Enter sends."
        super().__init__(id=id, placeholder=placeholder, highlight_cursor_line=False)
        self.turn: int | None = None
        """The turn whose question is edited here; None for a new question."""

    @property
    def question(self) -> Question:
        """What is in the field."""
        return Question(self.text, self.turn)

    def write(self, question: Question) -> None:
        """Put a question into the field, in place of what is there."""
        self.turn = question.turn
        self.text = question.text
        self.move_cursor(self.document.end)

    def take(self, text: str) -> None:
        """Take a text out that was sent; what was typed since then stays."""
        self.turn = None
        self.text = self.text.removeprefix(text)
        self.move_cursor(self.document.end)

    def action_send(self) -> None:
        """Send the text, once the keys that were pressed before are in it."""
        self.call_later(self._send)

    def action_new_line(self) -> None:
        """Begin another line."""
        self.insert("\n")

    def _send(self) -> None:
        if self.text.strip():
            self.post_message(self.Sent(self.question))

    async def _on_key(self, event: events.Key) -> None:
        if event.key in NEW_LINE:
            event.prevent_default()
            event.stop()
            self.action_new_line()
            return
        await super()._on_key(event)
