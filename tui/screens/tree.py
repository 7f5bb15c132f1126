"""The tree of an answer: what could have been said in each place, and how that would go on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Label, Tree
from textual.widgets.tree import TreeNode

from entropix_mlx.backends.events import ContinuationsRead
from entropix_mlx.chat.conversation import Turn
from entropix_mlx.palette import printable
from entropix_mlx.step import NOT_OF_THE_MODEL, Alternative, Step, first_divergence

from ..drawing import bar
from ..inspector.inspector import token_text
from ..transcript.form import shortened
from .dialogs import Dialog

LEAST = 0.05
"""Probability from which on a token is drawn as a branch."""
BEFORE = 6
"""Tokens of the answer that stand before those of a place."""
BAR = 8


@dataclass(frozen=True)
class Path:
    """Tokens that stand in the place of a step of the answer."""

    step: int
    tokens: tuple[int, ...]
    text: str = ""

    def followed_by(self, token: Alternative) -> Path:
        return Path(self.step, (*self.tokens, token.token), self.text + token.text)


class TreeScreen(Dialog[Path | int]):
    """The places of an answer, their branches, and the other answers to the question.

    Returns the path, or the number of the answer, that becomes part of the conversation.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("right,l", "open", "Expand", show=False),
        Binding("left,h", "close", "Collapse", show=False),
    ]

    def __init__(
        self, turn: Turn, cursor: int | None, expand: Callable[[Path], None] | None = None
    ) -> None:
        """Show the selected answer of a turn.

        Args:
            cursor: index of a token, whose place is shown first.
            expand: asks for what may follow a path, which `receive` takes; None without a model.
        """
        super().__init__()
        self._turn = turn
        self._cursor = cursor
        self._expand = expand
        self._passes = 0
        self._waiting: dict[tuple[int, tuple[int, ...]], TreeNode[Path | int]] = {}

    def compose(self) -> ComposeResult:
        tree: Tree[Path | int] = Tree(Text(printable(self._turn.heading) or "the answer"))
        tree.auto_expand = False
        with Vertical():
            yield Label(id="passes")
            yield tree
            more = " · → looks further" if self._expand is not None else ""
            yield Label(f"↑ ↓ move{more} · Enter goes on from there · Escape", classes="hint")

    def on_mount(self) -> None:
        tree = self._tree
        tree.root.expand()
        steps = self._turn.answer.steps
        shown = None
        for index, branches in self._places(steps):
            node = tree.root.add(place_label(steps, index), expand=True)
            for label, data in branches:
                node.add(label, data, allow_expand=isinstance(data, Path) and self._looks_ahead)
            if shown is None or (self._cursor is not None and index <= self._cursor):
                shown = node
        self._show_passes()
        tree.focus()
        if shown is not None:
            self.call_after_refresh(tree.move_cursor, shown)

    def receive(self, event: ContinuationsRead) -> None:
        node = self._waiting.pop((event.step, event.tokens), None)
        if node is None or not isinstance(node.data, Path):
            return
        if event.error is not None:
            self.notify(event.error, severity="warning", markup=False)
            return
        self._passes += len(event.tokens) + 1
        self._show_passes()
        for token in event.continuations:
            node.add(branch_label(token.text, token.logprob), node.data.followed_by(token))
        node.expand()

    def action_open(self) -> None:
        node = self._tree.cursor_node
        if node is None or node.children or self._expand is None:
            self._tree.action_cursor_down()
        elif isinstance(node.data, Path):
            key = node.data.step, node.data.tokens
            if key not in self._waiting:
                self._waiting[key] = node
                self._expand(node.data)

    def action_close(self) -> None:
        node = self._tree.cursor_node
        if node is not None and node.parent is not None:
            self._tree.move_cursor(node.parent)

    def on_tree_node_selected(self, event: Tree.NodeSelected[Path | int]) -> None:
        if event.node.data is not None and self._expand is not None:
            self.dismiss(event.node.data)

    def _places(self, steps: Sequence[Step]) -> Iterator[tuple[int, list[tuple[Text, Path | int]]]]:
        """Yield the places at which something else was probable, or another answer parts."""
        others = self._other_answers(steps)
        for step in steps:
            branches: list[tuple[Text, Path | int]] = [
                (branch_label(one.text, one.logprob), Path(step.index, (one.token,), one.text))
                for one in step.allowed or step.top_logprobs
                if one.token != step.token and one.logprob >= math.log(LEAST)
            ]
            if step.origin in NOT_OF_THE_MODEL:
                branches = []
            if step.fork is not None:
                branches = [
                    (branch_label(one.text, one.first_logprob), Path(step.index, one.tokens))
                    for number, one in enumerate(step.fork.branches)
                    if number != step.fork.winner
                ]
            branches += others.get(step.index, [])
            if branches:
                yield step.index, branches

    def _other_answers(self, steps: Sequence[Step]) -> dict[int, list[tuple[Text, Path | int]]]:
        found: dict[int, list[tuple[Text, Path | int]]] = {}
        for number, reply in enumerate(self._turn.answers):
            index = first_divergence(steps, reply.steps)
            if number == self._turn.selected or index is None or index >= len(steps):
                continue
            rest = "".join(step.text for step in reply.steps[index:])
            label = Text.assemble((f"answer {number + 1} ", "bold"), shortened(rest))
            found.setdefault(index, []).append((label, number))
        return found

    @property
    def _looks_ahead(self) -> bool:
        return self._expand is not None

    @property
    def _tree(self) -> Tree[Any]:
        return self.query_one(Tree)

    def _show_passes(self) -> None:
        count = len(self._tree.root.children)
        places = f"{count} place{'' if count == 1 else 's'} where something else was probable"
        spent = f" · {self._passes} forward passes to look further" if self._passes else ""
        self.query_one("#passes", Label).update(places + spent)


def place_label(steps: Sequence[Step], index: int) -> Text:
    before = "".join(step.text for step in steps[max(0, index - BEFORE) : index])
    step = steps[index]
    share = f"  {math.exp(step.logprob):.0%}"
    return Text.assemble(
        (f"…{in_line(before)}", "dim"), (token_text(step.text), "bold"), (share, "dim")
    )


def branch_label(text: str, logprob: float | None) -> Text:
    if logprob is None:  # an older trace
        return Text(in_line(text))
    probability = math.exp(logprob)
    drawn = bar(probability, 1.0, BAR)
    return Text.assemble((f"{drawn} {probability:4.0%} ", "dim"), in_line(text))


def in_line(text: str) -> str:
    """Return a text in one line; one that is blank, with its spaces and line ends visible."""
    return shortened(text) if text.strip() else token_text(text)
