"""Small questions to the user: a line, a longer text, yes or no."""

from __future__ import annotations

import math
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Label, OptionList, TextArea
from textual.widgets.option_list import Option

from entropix_mlx.palette import printable
from entropix_mlx.step import Branch, Fork
from entropix_mlx.traces.explain import fate, standing

from ..drawing import bar


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


SCORE_CELLS = 12
LINE = 200
"""Characters of the text before the fork that are shown."""


class AskDialog(ModalScreen[int]):
    """Shows the ways to go on at a fork; Escape takes the best."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "best", "Take the best")]

    def __init__(self, fork: Fork, before: str = "") -> None:
        """Show a fork.

        Args:
            branch: its ways.
            before: the text before the fork.
        """
        super().__init__(classes="dialog")
        self._fork = fork
        self._before = before

    def compose(self) -> ComposeResult:
        """Make the list, below the line that it continues."""
        line = printable(self._before).rpartition("\n")[2][-LINE:]
        with Vertical():
            yield Label("The model could go on in several ways. Which one?")
            if line.strip():
                yield Label(Content(f"{line} …"), classes="before")
            yield OptionList(*map(self._option, range(len(self._fork.branches))))
            yield Label("A number or Enter takes one, Escape the best (✓)", classes="hint")

    def on_mount(self) -> None:
        """Begin at the best one."""
        self.query_one(OptionList).highlighted = self._fork.winner

    def on_key(self, event: events.Key) -> None:
        """Take the one whose number was pressed."""
        numbers = [str(index + 1) for index in range(len(self._fork.branches))]
        if event.character in numbers:
            event.stop()
            self.dismiss(numbers.index(event.character))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Take one."""
        self.dismiss(event.option_index)

    def action_best(self) -> None:
        """Take the best."""
        self.dismiss(self._fork.winner)

    def _option(self, index: int) -> Option:
        branch = self._fork.branches[index]
        best = "✓" if index == self._fork.winner else " "
        text = printable(branch.text).replace("\n", "⏎")
        first = branch.first_logprob
        begins = "" if first is None else f"begins with p {math.exp(first):.2f}  "
        drawn = bar(math.exp(min(0.0, branch.mean_logprob)), 1.0, SCORE_CELLS)
        compared = standing(branch) if index else "the first"
        return Option(
            Content(
                f"{index + 1} {best} {text}\n    {begins}{compared}  {drawn} {_numbers(branch)}"
            )
        )


def _numbers(branch: Branch) -> str:
    numbers = f"log p {branch.mean_logprob:.2f}, entropy {branch.mean_entropy:.2f} bits"
    why = fate(branch)
    return f"{numbers}; {why}" if why else numbers
