"""Small questions to the user: a line, a longer text, yes or no, a branch of a fork."""

from __future__ import annotations

from typing import ClassVar, TypeVar

from textual.app import ComposeResult
from textual.await_complete import AwaitComplete
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Label, TextArea

from ..containers import Sized

T = TypeVar("T")


class Overlay(Sized, ModalScreen[T]):
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


def field_row(label: str, name: str, value: object, placeholder: str) -> ComposeResult:
    """Yield a label and a one-line field whose id is `name`."""
    with Horizontal(classes="row"):
        yield Label(label)
        text = "" if value is None else str(value)
        yield Input(text, placeholder=placeholder, id=name, compact=True)


def number_in(field: Input, whole: bool) -> float | None:
    """Return the number in a field; None if it is empty.

    Raises:
        ValueError: it is no number, or no whole one.
    """
    text = field.value.strip()
    if not text:
        return None
    try:
        return int(text) if whole else float(text)
    except ValueError:
        kind = "a whole number" if whole else "a number"
        raise ValueError(f"{field.id} must be {kind}, not {text!r}") from None


class TextDialog(Dialog[str]):
    """Asks for a line of text."""

    def __init__(self, title: str, text: str = "", placeholder: str = "") -> None:
        super().__init__()
        self._title = title
        self._text = text
        self._placeholder = placeholder

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Label(Content(self._title))
            yield Input(self._text, placeholder=self._placeholder)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value)


class LongTextDialog(TextDialog):
    """Asks for a text of several lines."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+s", "take", "Use", priority=True)]

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Label(Content(self._title))
            yield TextArea(self._text, placeholder=self._placeholder, tab_behavior="focus")
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
