"""An answer as it was decided, beside what other settings make of it."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Static

from entropix_mlx.step import Step, first_divergence

from ..containers import AutoScroll
from .answer import AnswerView


class Before(Vertical):
    """The left side of a comparison; the transcript is the right one."""

    DEFAULT_CSS = """
    Before { padding: 1 1 0 1; border-right: solid $panel; }
    Before Static { height: auto; }
    Before .heading { text-style: bold; padding-bottom: 1; }
    """

    def __init__(self, steps: Sequence[Step]) -> None:
        super().__init__(id="before")
        self._steps = list(steps)
        self._heading = Static(Content("before"), classes="heading")
        self._answer = AnswerView(steps)
        self._after: AnswerView | None = None  # in which the first difference is sought

    def compose(self) -> ComposeResult:
        yield self._heading
        yield AutoScroll(self._answer, can_focus=False)

    def compare(self, after: AnswerView) -> None:
        """Mark the first token in which another answer differs, as soon as it has that token."""
        if after is not self._after:
            self._after = after
            self._heading.update(Content("before"))
            self._answer.point(None)
        common = min(len(self._steps), len(after.steps))
        place = first_divergence(self._steps[:common], after.steps[:common])
        if place is not None and self._answer.cursor is None:
            self._heading.update(Content(f"before · differs at token {place + 1}"))
            self._answer.point(place)
            after.point(place)
