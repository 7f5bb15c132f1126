"""The question field: Enter sends, Shift+Enter and Ctrl+J begin a line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.binding import BindingType
from textual.message import Message
from textual.widgets import TextArea

from entropix_mlx.chat.events import UserMessage
from entropix_mlx.palette import QUESTIONS

from ..keys import bind

PLACEHOLDER = "Ask something; ↑ brings a question to try. Enter sends."
NEW_LINE = ("shift+enter", "ctrl+j")
PAGES = {"/": "app.command_palette", "?": "app.help"}
"""What a character opens in an empty field."""


class Composer(TextArea):
    """A text area that sends, and remembers what was sent."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("composer.tab", "tab", "app.tokens", "Inspect tokens", footer=True),
        bind("composer.send", "enter", "send", "Send", priority=True),
        bind("composer.newline", ",".join(NEW_LINE), "new_line", "New line", shown="Ctrl+J"),
        bind("composer.earlier", "up", "earlier", "Earlier question", shown="↑ ↓"),
        bind("composer.later", "down", "later"),
    ]

    @dataclass
    class Sent(Message):
        """A question is ready."""

        question: UserMessage

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id, placeholder=PLACEHOLDER, highlight_cursor_line=False)
        self.turn: int | None = None
        """The turn whose question is edited here; None for a new question."""
        self._sent = list(reversed(QUESTIONS))  # ↑ in an empty chat brings one
        self._recalled = len(self._sent)  # index in `_sent`; its length: what is being typed
        self._unsent = ""
        self._offered: Callable[[], object] | None = None

    def offer(self, text: str, take: Callable[[], object]) -> None:
        """Show a line in the empty field, where Enter calls `take` once."""
        self.placeholder, self._offered = text, take

    @property
    def question(self) -> UserMessage:
        return UserMessage(self.text, self.turn)

    def write(self, question: UserMessage) -> None:
        self.turn = question.turn
        self._replace(question.text)

    def clear_sent(self, text: str) -> None:
        """Remove a text that was sent, and remember it; what was typed since then stays."""
        self.turn = None
        if text not in self._sent[-1:]:
            self._sent.append(text)
        self._recalled, self._unsent = len(self._sent), ""
        self._replace(self.text.removeprefix(text))

    def action_send(self) -> None:
        """Send the text, once the keys that were pressed before are in it."""
        self.call_later(self._send)

    def action_new_line(self) -> None:
        self.insert("\n")

    def action_earlier(self) -> None:
        """Bring an earlier question back, from the first line on; else move up."""
        if self.navigator.is_first_wrapped_line(self.cursor_location) and self._recalled > 0:
            self._recall(-1)
        else:
            self.action_cursor_up()

    def action_later(self) -> None:
        """Bring a later question back, from the last line on; else move down."""
        last = self.navigator.is_last_wrapped_line(self.cursor_location)
        if last and self._recalled < len(self._sent):
            self._recall(1)
        else:
            self.action_cursor_down()

    def _recall(self, by: int) -> None:
        if self._recalled == len(self._sent):
            self._unsent = self.text
        self._recalled += by
        at_end = self._recalled == len(self._sent)
        self._replace(self._unsent if at_end else self._sent[self._recalled])

    def _send(self) -> None:
        if self.text.strip():
            self.post_message(self.Sent(self.question))
        elif self._offered is not None:
            take, self._offered, self.placeholder = self._offered, None, PLACEHOLDER
            take()

    def _replace(self, text: str) -> None:
        self.text = text
        self.move_cursor(self.document.end)

    async def on_key(self, event: events.Key) -> None:
        """Open a page, or begin a line, before the text area takes the key."""
        page = None if self.text else PAGES.get(event.character or "")
        if event.key in NEW_LINE:
            self.action_new_line()
        elif page is not None:
            await self.run_action(page)
        else:
            return
        event.prevent_default()
        event.stop()
