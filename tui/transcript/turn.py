"""A question, the answer to it that is selected, and how many answers there are."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import Static

from entropix_mlx.chat.conversation import Turn
from entropix_mlx.palette import printable

from ..blank import Column
from .answer import AnswerView


class TurnView(Column):
    """A question and the answer that is selected."""

    DEFAULT_CSS = """
    TurnView { height: auto; padding: 0 1 1 1; }
    TurnView .question { color: $text-accent; text-style: bold; padding-bottom: 1; }
    TurnView .siblings { color: $text-muted; }
    """

    def __init__(self, turn: Turn, marks: bool) -> None:
        super().__init__()
        self.turn = turn
        self.answer = AnswerView(turn.answer.steps if turn.answers else (), marks)

    def compose(self) -> ComposeResult:
        """Make the question, the answer, and how many answers there are."""
        yield Static(Content(f"❯ {printable(self.turn.question)}"), classes="question")
        yield self.answer
        if len(self.turn.answers) > 1:
            which = f"answer {self.turn.selected + 1} of {len(self.turn.answers)}: [ and ] switch"
            yield Static(Content(which), classes="siblings")

    def shows(self, turn: Turn) -> bool:
        """Tell whether this is what a turn looks like."""
        mine = (self.turn.question, self.turn.selected, len(self.turn.answers))
        steps = turn.answer.steps if turn.answers else []
        return (
            mine == (turn.question, turn.selected, len(turn.answers)) and self.answer.steps == steps
        )
