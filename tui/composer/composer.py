"""The question field: Enter sends, Shift+Enter and Ctrl+J begin a line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message
from textual.widgets import Static, TextArea

from entropix_mlx.backends.events import UserMessage
from entropix_mlx.chat.attachments import matching
from entropix_mlx.chat.slash import completions
from entropix_mlx.palette import QUESTIONS

MOST_LINES = 8
"""Completions that are listed at once."""
NEW_LINE = ("shift+enter", "ctrl+j")


class Composer(TextArea):
    """A text area that sends, completes, and remembers what was sent."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "enter", "send", "Send", id="composer.send", priority=True, tooltip="Send the question"
        ),
        Binding(
            ",".join(NEW_LINE), "new_line", "New line", id="composer.newline", show=False,
            key_display="Ctrl+J", tooltip="New line, as Shift+Enter",
        ),
        Binding(
            "tab", "complete", "Inspect tokens", id="composer.tab",
            tooltip="Inspect tokens; completes /… and @…",
        ),
        Binding(
            "up", "earlier", "Earlier", id="composer.earlier", key_display="↑ ↓",
            tooltip="An earlier question",
        ),
        Binding("down", "later", "Later", id="composer.later", show=False),
    ]  # fmt: skip

    @dataclass
    class Sent(Message):
        """A question is ready."""

        question: UserMessage

    class TokensRequested(Message):
        """The user asks for the tokens."""

    def __init__(self, *, id: str) -> None:
        placeholder = "Ask something. Enter sends."
        super().__init__(id=id, placeholder=placeholder, highlight_cursor_line=False)
        self.hints = Hints()
        """The completions of what is being typed; to be placed above the field."""
        self.turn: int | None = None
        """The turn whose question is edited here; None for a new question."""
        self.offers_questions = True
        """Whether the keys 1 to 3 write the questions of the welcome card into an empty field."""
        self._sent: list[str] = []
        self._recalled = 0  # index in `_sent`; its length: what is being typed
        self._unsent = ""
        self._offered = ""  # the digit that wrote a question of the card

    @property
    def question(self) -> UserMessage:
        return UserMessage(self.text, self.turn)

    def write(self, question: UserMessage) -> None:
        """Put a question into the field, in place of what is there."""
        self.turn = question.turn
        self._replace(question.text)

    def clear_sent(self, text: str) -> None:
        """Remove a text that was sent, and remember it; what was typed since then stays."""
        self.turn = None
        self.remember([text])
        self._replace(self.text.removeprefix(text))

    def remember(self, texts: list[str]) -> None:
        """Add sent texts to the history that ↑ brings back."""
        for text in texts:
            if text.strip() and text not in self._sent[-1:]:
                self._sent.append(text)
        self._recalled, self._unsent = len(self._sent), ""

    def on_text_area_changed(self) -> None:
        self.hints.follow(self.text)

    def action_send(self) -> None:
        """Send the text, once the keys that were pressed before are in it."""
        self.call_later(self._send)

    def action_new_line(self) -> None:
        self.insert("\n")

    def action_complete(self) -> None:
        """Complete what is being typed; else go to the tokens."""
        completed = self.hints.take()
        if completed is None:
            self.post_message(self.TokensRequested())
        else:
            self._replace(completed)

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
            self.hints.clear()
            self.post_message(self.Sent(self.question))

    def _replace(self, text: str) -> None:
        self.text = text
        self.move_cursor(self.document.end)

    def _write_offered(self, event: events.Key) -> bool:
        """Write a question of the card for its digit; a second key takes that back."""
        offered, self._offered = self._offered, ""
        if offered and self.text == QUESTIONS[int(offered) - 1] and event.is_printable:
            self._replace(offered)  # what is typed begins with that digit
            return False
        numbers = [str(number + 1) for number in range(len(QUESTIONS))]
        if not self.offers_questions or self.text or event.character not in numbers:
            return False
        self._offered = event.character
        self._replace(QUESTIONS[int(self._offered) - 1])
        return True

    async def _on_key(self, event: events.Key) -> None:
        new_line = event.key in NEW_LINE
        if new_line:
            self.action_new_line()
        if new_line or self._write_offered(event):
            event.prevent_default()
            event.stop()
            return
        await super()._on_key(event)


class Hints(Static):
    """The completions of what is being typed; hidden while there are none."""

    DEFAULT_CSS = """
    Hints { display: none; height: auto; padding: 0 2; background: $surface; color: $text-muted; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._found: list[tuple[str, str]] = []
        self._taken: str | None = None  # the completion that stands in the field
        self._number = 0

    def follow(self, text: str) -> None:
        """List the completions of a text, unless it is one that was just taken."""
        if text == self._taken:
            return
        self._taken, self._number = None, 0
        found = _completions(text)
        if found != self._found:
            self._found = found
            self.display = bool(found)
            self._draw()

    def take(self) -> str | None:
        """Return the next completion for the field; None if there is none."""
        if not self._found:
            return None
        self._taken = self._found[self._number % len(self._found)][0]
        self._number += 1
        self._draw()
        return self._taken

    def clear(self) -> None:
        self._found, self._taken = [], None
        self.display = False

    def _draw(self) -> None:
        first = max(0, self._number - MOST_LINES)
        lines = []
        for name, explanation in self._found[first : first + MOST_LINES]:
            shown = name.rpartition("@")[2] if "@" in name else name
            line = Content.styled(f"{shown:<12}", "bold") + Content(f" {explanation}")
            lines.append(line.stylize("reverse") if name == self._taken else line)
        more = len(self._found) - first - MOST_LINES
        lines += [Content(f"… {more} more")] if more > 0 else []
        lines += [Content("Tab completes")] if self._taken is None else []
        self.update(
            Content("\n").join(
                line.truncate(max(8, self.app.size.width - 6), ellipsis=True) for line in lines
            )
        )


def _completions(text: str) -> list[tuple[str, str]]:
    """Return commands after a slash and files after an @, each with its explanation."""
    if commands := completions(text):
        return [(command.name, f"{command.argument}  {command.help}") for command in commands]
    before, at, name = text.rpartition("@")
    if not at or any(c.isspace() for c in name) or (before and not before[-1].isspace()):
        return []
    return [(f"{before}@{path}", "") for path in matching(name)]
