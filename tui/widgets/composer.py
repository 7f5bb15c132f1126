"""Where a question is typed: Enter sends, Shift+Enter and Ctrl+J begin a line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import TextArea


class Composer(TextArea):
    """A text area that sends."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "send", "Send", priority=True, id="composer.send"),
        Binding("shift+enter,ctrl+j", "new_line", "New line", show=False, id="composer.newline"),
    ]

    @dataclass
    class Sent(Message):
        """A question is ready."""

        text: str

    def __init__(self, *, id: str) -> None:
        """Begin empty."""
        placeholder = "Ask something. Enter sends."
        super().__init__(id=id, placeholder=placeholder, highlight_cursor_line=False)

    def action_send(self) -> None:
        """Hand the text over, once the keys that were pressed before are in it."""
        self.call_later(self._send)

    def take(self, text: str) -> None:
        """Take a text out that was sent; what was typed since then stays."""
        self.text = self.text.removeprefix(text)
        self.move_cursor(self.document.end)

    def _send(self) -> None:
        if self.text.strip():
            self.post_message(self.Sent(self.text))

    def action_new_line(self) -> None:
        """Begin another line."""
        self.insert("\n")

    async def _on_key(self, event: events.Key) -> None:
        if event.key in ("shift+enter", "ctrl+j"):
            event.prevent_default()
            event.stop()
            self.action_new_line()
            return
        await super()._on_key(event)
