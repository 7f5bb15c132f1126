"""What an empty chat shows: what the colours mean, and questions to begin with."""

from __future__ import annotations

from textual.content import Content
from textual.style import Style
from textual.widgets import Static

from ..help_text import strategies

QUESTIONS = (
    "Which is larger, 9.11 or 9.9?",
    "Write a short poem about a lighthouse.",
    "What should I name my cat?",
)
"""The keys 1 to 3 put these into the field."""
SPACIOUS = 17
"""From so many lines on, the card has empty ones."""


def draw_card(spacious: bool) -> Content:
    """Return the card; with `spacious`, its parts are an empty line apart."""
    bold = Style(bold=True)
    asks = "\n".join(f" {n}  {question}" for n, question in enumerate(QUESTIONS, 1))
    gap = [Content()] if spacious else []
    lines = [
        Content.styled("The colour of each token shows how sure the model is", bold),
        Content("H: how open the choice is; V: how uneven. They decide:"),
        strategies(),
        *gap,
        Content.styled("Ask something, or press a number, then Enter", bold),
        Content(asks),
        *gap,
        Content("Then Tab goes to the tokens: why each, and other ways."),
        Content("F1 explains everything. / lists the commands."),
    ]
    return Content("\n").join(lines)


class Welcome(Static):
    """Shown until something was asked."""

    DEFAULT_CSS = "Welcome { width: auto; max-width: 100%; height: auto; padding: 0 1; }"

    def __init__(self) -> None:
        super().__init__(draw_card(spacious=True))

    def fit(self, lines: int) -> None:
        """Leave out the empty lines where there are few lines."""
        self.update(draw_card(spacious=lines >= SPACIOUS))
