"""Small questions to the user: a line, a longer text, yes or no; and how much room there is."""

from __future__ import annotations

from typing import ClassVar, TypeVar

from textual import events
from textual.app import ComposeResult
from textual.await_complete import AwaitComplete
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen, Screen
from textual.widgets import Input, Label, TextArea

T = TypeVar("T")
WIDE, HIGH = 100, 20
"""Columns and lines from which on the panel stands beside the text."""
FLAT = 14
"""Lines below which there is no room for lines that explain."""
SMALLEST = 24, 6


class Sized(Screen[T]):
    """A screen whose classes say how much room there is, see entropix.tcss."""

    def on_resize(self, event: events.Resize) -> None:
        width, height = event.size
        self.set_class(width < WIDE or height < HIGH, "-small")
        self.set_class(height < FLAT, "-flat")
        self.set_class(width < SMALLEST[0] or height < SMALLEST[1], "-tiny")


class Overlay(ModalScreen[T], Sized[T]):
    """A screen over the chat that closes only while it is on top."""

    def dismiss(self, result: T | None = None) -> AwaitComplete:
        """Close the screen, unless keys that came before closed it, or opened another one over it,
        which would be closed in its place."""
        return super().dismiss(result) if self.app.screen is self else AwaitComplete()


class Dialog(Overlay[T | None]):
    """A dialog over the chat, without a result if Escape closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss", "Cancel")]

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id, classes="dialog")


class TextDialog(Dialog[str]):
    """Asks for a line of text."""

    def __init__(self, title: str, text: str = "") -> None:
        super().__init__()
        self._title = title
        self._text = text

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Label(Content(self._title))
            yield Input(self._text)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value)


class LongTextDialog(TextDialog):
    """Asks for a text of several lines."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+s", "take", "Use", priority=True)]

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Label(Content(self._title))
            yield TextArea(self._text, tab_behavior="focus")
            yield Label("Ctrl+S accepts, Escape cancels", classes="hint")

    def action_take(self) -> None:
        self.dismiss(self.query_one(TextArea).text)


class ConfirmDialog(Dialog[bool]):
    """Asks whether to do something that cannot be undone."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,y", "dismiss(True)", "Yes"),
        Binding("n", "dismiss(False)", "No"),
    ]

    def __init__(self, question: str, yes: str) -> None:
        super().__init__()
        self._question = question
        self._yes = yes

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Label(Content(self._question))
            yield Label(Content(f"Enter {self._yes}, Escape cancels"), classes="hint")
