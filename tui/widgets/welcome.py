"""What an empty chat shows: what the colours mean, and questions to begin with."""

from __future__ import annotations

from textual.content import Content
from textual.style import Style
from textual.widgets import Static

from ..explaining import strategies

QUESTIONS = (
    "Which is larger, 9.11 or 9.9?",
    "Write a short poem about a lighthouse.",
    "What should I name my cat?",
)
"""The keys 1 to 3 put these into the field."""


class Welcome(Static):
    """Shown until something was asked."""

    DEFAULT_CSS = "Welcome { width: auto; max-width: 100%; height: auto; padding: 0 1 1 1; }"

    def __init__(self) -> None:
        """Make the card."""
        bold = Style(bold=True)
        asks = "\n".join(f" {n}  {question}" for n, question in enumerate(QUESTIONS, 1))
        super().__init__(
            Content("\n").join(
                [
                    Content.styled("Every token shows how sure the model is", bold),
                    Content("H: how open the choice is; V: how uneven. They decide:"),
                    strategies(),
                    Content(),
                    Content.styled("Ask something, or press a number, then Enter", bold),
                    Content(asks),
                    Content(),
                    Content(
                        "Tab goes to the tokens of an answer: why each was chosen, and other ways."
                    ),
                    Content("F1 explains everything. / lists the commands."),
                ]
            )
        )
