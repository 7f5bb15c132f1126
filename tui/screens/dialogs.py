"""Small questions to the user: a text, a way at a fork, and the help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Label, OptionList, Static
from textual.widgets.option_list import Option

from entropix_mlx.palette import printable
from entropix_mlx.step import Branch

from ..keys import key_rows
from ..styles import legend


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


class AskDialog(ModalScreen[int]):
    """Shows the ways to go on at a fork; Escape takes the best."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "best", "Take the best")]

    def __init__(self, branch: Branch) -> None:
        """Show a fork."""
        super().__init__(classes="dialog")
        self._branch = branch

    def compose(self) -> ComposeResult:
        """Make the list."""
        with Vertical():
            yield Label("The model could go on in several ways. Which one?")
            yield OptionList(*map(self._option, range(len(self._branch.rollouts))))
            yield Label("Enter takes one, Escape the best (✓)", classes="hint")

    def on_mount(self) -> None:
        """Begin at the best one."""
        self.query_one(OptionList).highlighted = self._branch.winner

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Take one."""
        self.dismiss(event.option_index)

    def action_best(self) -> None:
        """Take the best."""
        self.dismiss(self._branch.winner)

    def _option(self, number: int) -> Option:
        rollout = self._branch.rollouts[number]
        best = "✓" if number == self._branch.winner else " "
        text = printable(rollout.text).replace("\n", "⏎")
        return Option(
            Content(
                f"{best} {text}\n  score {rollout.score:.2f}, log p {rollout.mean_logprob:.2f},"
                f" entropy {rollout.mean_entropy:.2f} bits (means)"
            )
        )


class HelpScreen(ModalScreen[None]):
    """Keys, and what colours and marks mean."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,f1,q", "close", "Close")]

    def __init__(
        self, groups: Mapping[str, Sequence[BindingType]], commands: Sequence[str] = ()
    ) -> None:
        """Make the page.

        Args:
            groups: the bindings to explain, by heading, a column each.
            commands: what can be typed in the field, if there is one.
        """
        super().__init__(classes="dialog")
        self._groups = groups
        self._commands = commands

    def compose(self) -> ComposeResult:
        """Make the columns, and the legend below them."""
        with VerticalScroll():
            with Horizontal():
                for heading, bindings in self._groups.items():
                    yield Static(_key_table(heading, bindings))
            yield Static(legend(), classes="legend")
            if self._commands:
                yield Static(Content(f"In the field: {'  '.join(self._commands)}"))
            yield Label("Escape closes", classes="hint")

    def action_close(self) -> None:
        """Close."""
        self.dismiss(None)


def _key_table(heading: str, bindings: Sequence[BindingType]) -> Content:
    lines = [f"{key:<8}{title}" for key, title in key_rows(bindings)]
    return Content("\n").join([Content.styled(heading, "bold"), *map(Content, lines)])
