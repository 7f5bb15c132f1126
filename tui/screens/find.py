"""Search in the chat, in a bar above it."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widgets import Input, Label

from entropix_mlx.chat.conversation import Conversation
from entropix_mlx.chat.finding import Match, search

from .dialogs import Overlay

KEYS = "↓ ↑ next, previous; Escape closes"


class FindBar(Overlay[None]):
    """Goes from one match to the next."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "Close"),
        Binding("down,enter,ctrl+f", "go(1)", "Next", priority=True),
        Binding("up", "go(-1)", "Previous", priority=True),
    ]
    DEFAULT_CSS = """
    FindBar { align: left top; background: $background 0%; }
    FindBar Horizontal { height: 1; background: $surface; }
    FindBar Input { width: 1fr; }
    FindBar Label { width: auto; padding: 0 1; color: $text-muted; }
    """

    def __init__(self, conversation: Conversation, show: Callable[[Match], None]) -> None:
        super().__init__()
        self._conversation = conversation
        self._show = show
        self._places: list[Match] = []
        self._number = -1

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield Input(placeholder="find in this chat", compact=True)
            yield Label(KEYS)

    def on_input_changed(self, event: Input.Changed) -> None:
        self._places = search(self._conversation, event.value)
        self._number = len(self._places)
        self.action_go(-1)

    def action_go(self, by: int) -> None:
        label = self.query_one(Label)
        if not self._places:
            label.update("not found" if self.query_one(Input).value else "")
            return
        self._number = (self._number + by) % len(self._places)
        label.update(f"{self._number + 1} of {len(self._places)} · {KEYS}")
        self._show(self._places[self._number])
