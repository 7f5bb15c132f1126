"""Small questions to the user: a text, a way at a fork, and the help."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Label, OptionList, Static
from textual.widgets.option_list import Option

from entropix_mlx.palette import printable
from entropix_mlx.step import Branch

from ..looks import legend


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


KEYS = """\
Enter     send                     Shift+Enter, Ctrl+J  new line
Escape    stop the answer; leave the tokens
Ctrl+R    answer once more         Ctrl+G  edit the last question
Ctrl+N    new chat                 Ctrl+T  Markdown or tokens
Ctrl+S    save: .json chat, .md text, .jsonl trace
Ctrl+O    open a saved chat        Ctrl+P  all commands, themes
F2        show or hide the gauges  F3      settings, thresholds
F4        duel of two samplers     Ctrl+Q  quit

Tab goes to the tokens of the answer, and back. There:
← →       another token            ↑ ↓     another alternative
F         fork: go on from here with that alternative
[ ]       another of the answers   G       glyphs before tokens
Y         copy the answer          a click points at a token"""


class HelpScreen(ModalScreen[None]):
    """Keys, and what colours and marks mean."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,f1,q", "close", "Close")]

    def __init__(self) -> None:
        """Make the page."""
        super().__init__(classes="dialog")

    def compose(self) -> ComposeResult:
        """Make the texts."""
        with VerticalScroll():
            yield Static(Content(KEYS))
            yield Static(legend(), classes="legend")
            yield Label("Escape closes", classes="hint")

    def action_close(self) -> None:
        """Close."""
        self.dismiss(None)
