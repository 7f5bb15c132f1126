"""At a fork whose best ways score alike, the user chooses one."""

from __future__ import annotations

import math
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Label, OptionList
from textual.widgets.option_list import Option

from entropix_mlx.palette import printable
from entropix_mlx.step import Branch, Fork
from entropix_mlx.traces.explain import fate, standing

from ..drawing import bar

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
