"""Small questions to the user: a line, a longer text, yes or no, a branch of a fork."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import ClassVar, TypeVar

from textual import events
from textual.app import ComposeResult
from textual.await_complete import AwaitComplete
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Label, OptionList, TextArea
from textual.widgets.option_list import Option

from entropix_mlx.palette import printable
from entropix_mlx.step import Branch, Fork
from entropix_mlx.traces.explain import fate, standing

from ..drawing import bar

SCORE_CELLS = 12
LINE = 200
"""Characters of the text before the fork that are shown."""
T = TypeVar("T")


class Overlay(ModalScreen[T]):
    """A screen over the chat that closes only while it is on top."""

    def dismiss(self, result: T | None = None) -> AwaitComplete:
        """Close the screen, unless keys that came before closed it, or opened another one over it,
        which would be closed in its place."""
        return super().dismiss(result) if self.app.screen is self else AwaitComplete()


class Dialog(Overlay[T | None]):
    """A dialog over the chat, without a result if Escape closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss", "Cancel")]

    def __init__(self) -> None:
        super().__init__(classes="dialog")


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


class SaveDialog(TextDialog):
    """Asks for the path of a file, and what shall be in it, which its suffix says."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "kind(-1)", "Other kind", show=False),
        Binding("down", "kind(1)", "Other kind", show=False),
    ]

    def __init__(self, path: str, kinds: Mapping[str, str]) -> None:
        """Propose a path; `kinds` says what files hold, by suffix."""
        super().__init__("Save or share: ↑ ↓ choose what, Enter saves", path)
        self._kinds = kinds

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Label(self._title)
            yield Input(self._text)
            kinds = OptionList(*(f"{suffix:7}{what}" for suffix, what in self._kinds.items()))
            kinds.can_focus = False
            yield kinds

    def on_input_changed(self, event: Input.Changed) -> None:
        suffix = os.path.splitext(event.value)[1]
        number = [*self._kinds].index(suffix) if suffix in self._kinds else None
        self.query_one(OptionList).highlighted = number

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self._choose(event.option_index)
        self.dismiss(self.query_one(Input).value)

    def action_kind(self, by: int) -> None:
        number = self.query_one(OptionList).highlighted
        self._choose(min(by, 0) if number is None else (number + by) % len(self._kinds))

    def _choose(self, number: int) -> None:
        field = self.query_one(Input)
        field.value = os.path.splitext(field.value)[0] + [*self._kinds][number]


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


class AskDialog(Dialog[int]):
    """Asks for a branch at a fork whose best ones score alike; Escape leaves the choice."""

    def __init__(self, fork: Fork, before: str = "") -> None:
        super().__init__()
        self._fork = fork
        self._before = before

    def compose(self) -> ComposeResult:
        line = printable(self._before).rpartition("\n")[2][-LINE:]
        with Vertical():
            yield Label("The branches of this fork score alike. Which one?")
            if line.strip():
                yield Label(Content(f"{line} …"), classes="before")
            yield OptionList(*map(self._option, range(len(self._fork.branches))))
            yield Label("A number or Enter chooses one, Escape the best (✓)", classes="hint")

    def on_mount(self) -> None:
        self.query_one(OptionList).highlighted = self._fork.winner

    def on_key(self, event: events.Key) -> None:
        numbers = [str(index + 1) for index in range(len(self._fork.branches))]
        if event.character in numbers:
            event.stop()
            self.dismiss(numbers.index(event.character))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option_index)

    def _option(self, index: int) -> Option:
        branch = self._fork.branches[index]
        best = "✓" if index == self._fork.winner else " "
        text = printable(branch.text).replace("\n", "⏎")
        first = branch.first_logprob
        begins = "" if first is None else f"begins with p {math.exp(first):.2f}  "
        drawn = bar(math.exp(min(0.0, branch.mean_logprob)), 1.0, SCORE_CELLS)
        score = standing(branch) if index else "the first"
        return Option(
            Content(f"{index + 1} {best} {text}\n    {begins}{score}  {drawn} {_numbers(branch)}")
        )


def _numbers(branch: Branch) -> str:
    numbers = f"log p {branch.mean_logprob:.2f} nats/token, H {branch.mean_entropy:.2f} bits"
    stopped = fate(branch)
    return f"{numbers}; {stopped}" if stopped else numbers
