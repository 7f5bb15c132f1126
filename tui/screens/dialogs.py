"""Small questions to the user: a line, a longer text, yes or no."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Label, TextArea


class TextDialog(ModalScreen[str | None]):
    """Asks for a line of text."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "Cancel")]

    def __init__(self, title: str, text: str = "", placeholder: str = "") -> None:
        """Ask, with a text to begin with."""
        super().__init__(classes="dialog")
        self._title = title
        self._text = text
        self._placeholder = placeholder

    def compose(self) -> ComposeResult:
        """Make the question and the field."""
        with Vertical():
            yield Label(Content(self._title))
            yield Input(self._text, placeholder=self._placeholder)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Take the text."""
        self.dismiss(event.value)

    def action_cancel(self) -> None:
        """Take nothing."""
        self.dismiss(None)


class LongTextDialog(TextDialog):
    """Asks for a text of several lines."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+s", "take", "Use", priority=True)]

    def compose(self) -> ComposeResult:
        """Make the question and the field."""
        with Vertical():
            yield Label(Content(self._title))
            yield TextArea(self._text, placeholder=self._placeholder, tab_behavior="focus")
            yield Label("Ctrl+S uses it, Escape does not", classes="hint")

    def action_take(self) -> None:
        """Take the text."""
        self.dismiss(self.query_one(TextArea).text)


class ConfirmDialog(ModalScreen[bool]):
    """Asks whether to do something that cannot be undone."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,y", "answer(True)", "Yes"),
        Binding("escape,n", "answer(False)", "No"),
    ]

    def __init__(self, question: str, yes: str) -> None:
        """Ask.

        Args:
            question: see above.
            yes: what Enter does.
        """
        super().__init__(classes="dialog")
        self._question = question
        self._yes = yes

    def compose(self) -> ComposeResult:
        """Make the question."""
        with Vertical():
            yield Label(Content(self._question))
            yield Label(Content(f"Enter {self._yes}, Escape does not"), classes="hint")

    def action_answer(self, yes: bool) -> None:
        """Take the answer."""
        self.dismiss(yes)
