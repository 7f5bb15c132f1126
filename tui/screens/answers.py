"""Lists to choose from: the answers to a question, the fields of one, its least sure tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Label, OptionList, Static
from textual.widgets.option_list import Option

from entropix_mlx.chat.conversation import Reply, Turn
from entropix_mlx.constraints.fields import Field, FieldAlternative
from entropix_mlx.palette import printable
from entropix_mlx.profiles.confidence import AnswerMetrics, score_of
from entropix_mlx.step import Step

from ..drawing import DIM
from ..styles import graded
from ..transcript.form import alternatives_line, field_line, shortened
from .dialogs import Dialog

MOST, BEFORE, BEFORE_CELLS = 20, 6, 24
"""The least sure tokens that are listed, the tokens before each, and the cells for these."""
MOST_LISTED = 9
"""Alternatives that a digit takes."""


class AnswerList(Dialog[int]):
    """All answers to a question. Returns the number of the one that becomes part of the chat."""

    def __init__(self, turn: Turn) -> None:
        super().__init__()
        self._turn = turn

    def compose(self) -> ComposeResult:
        with Vertical():
            alike = len(self._turn.agreeing)
            agree = f"{alike} of them agree" if alike > 1 else "none agrees with this one"
            yield Label(f"{len(self._turn.answers)} answers, {agree}")
            yield OptionList(
                *(self._option(number, reply) for number, reply in enumerate(self._turn.answers))
            )
            yield Label("= says the same · Enter takes one · Escape keeps this one", classes="hint")

    def on_mount(self) -> None:
        self.query_one(OptionList).highlighted = self._turn.selected

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option_index)

    def _option(self, number: int, reply: Reply) -> Option:
        metrics = AnswerMetrics.of(reply.steps)
        confidence = math.exp(score_of("mean_logprob", metrics))
        chosen = "▸" if number == self._turn.selected else " "
        same = "=" if reply in self._turn.agreeing else " "
        lowest = f"lowest log p {score_of('lowest_logprob', metrics):.2f} nats/token"
        about = Content.styled(f"   {lowest} · {len(reply.steps)} tokens", DIM)
        line = Content.assemble(f"{chosen}{same}{number + 1} ", graded(confidence), " ")
        return Option(line + Content(shortened(reply.text)) + Content("\n") + about)


class LeastSure(Dialog[int]):
    """The least sure tokens of an answer. Returns the index of the one to go to."""

    def __init__(self, steps: Sequence[Step]) -> None:
        super().__init__()
        self._steps = steps
        self._indices = sorted(range(len(steps)), key=lambda index: steps[index].logprob)[:MOST]

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Label(f"Least sure: {len(self._indices)} of {len(self._steps)} tokens")
            yield OptionList(*map(self._option, self._indices))
            yield Label("↑ ↓ another token · Enter goes there · Escape closes", classes="hint")

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._indices[event.option_index])

    def _option(self, index: int) -> Option:
        step = self._steps[index]
        around = self._steps[max(0, index - BEFORE) : index]
        before = visible("".join(other.text for other in around))[-BEFORE_CELLS:]
        word = Content.styled(visible(step.text) or "∅", "bold underline")
        where = Content.styled(f"  H {step.entropy:.2f} bits · token {index + 1}", DIM)
        dim = Content.styled(before, DIM)
        return Option(Content.assemble(graded(math.exp(step.logprob)), " ", dim, word, where))


def visible(text: str) -> str:
    """Return a text in one line."""
    return printable(text).replace("\n", "⏎")


class TakenAlternative(NamedTuple):
    """A token that is to stand at a place of an answer."""

    step: int
    token: int


class FieldList(Dialog[TakenAlternative]):
    """The fields of a structured answer, with the alternatives of the one that is pointed at."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(str(digit), f"take({digit})", show=False) for digit in range(1, MOST_LISTED + 1)
    ]

    def __init__(self, fields: Sequence[Field]) -> None:
        super().__init__()
        self._fields = fields

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Label(f"{len(self._fields)} fields: probability of each value")
            yield OptionList(*map(field_line, self._fields))
            yield Static(id="others")
            yield Label("↑ ↓ another field · 1 … 9 takes an alternative · Escape", classes="hint")

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        listed = [
            (other.text, f"{other.probability:.0%}") for other in self._listed(event.option_index)
        ]
        text = alternatives_line(listed) if listed else "it has no probable alternative"
        self.query_one("#others", Static).update(text)

    def action_take(self, number: int) -> None:
        listed = self._listed(self.query_one(OptionList).highlighted or 0)
        if number <= len(listed):
            self.dismiss(TakenAlternative(listed[number - 1].step, listed[number - 1].token))

    def _listed(self, field: int) -> Sequence[FieldAlternative]:
        return self._fields[field].alternatives[:MOST_LISTED]
