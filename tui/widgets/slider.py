"""A threshold that the arrow keys move."""

from __future__ import annotations

import math
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message
from textual.widget import Widget

from ..drawing import bar

NAME_WIDTH, BAR_WIDTH = 24, 12
SHARE_STEP, BITS_STEP = 0.02, 0.1
"""How far a key moves a threshold whose scale ends at 1, and one of bits or bits²."""


class Slider(Widget, can_focus=True):
    """A threshold: the arrow keys move it, with Shift ten times as far."""

    DEFAULT_CSS = """
    Slider { height: 1; }
    Slider:focus { background: $primary 40%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "move(-1)", "Less"),
        Binding("right", "move(1)", "More"),
        Binding("shift+left", "move(-10)", "Much less", show=False),
        Binding("shift+right", "move(10)", "Much more", show=False),
        Binding("up", "screen.focus_previous", show=False),
        Binding("down", "screen.focus_next", show=False),
    ]

    class Changed(Message):
        """The threshold moved."""

    def __init__(self, name: str, value: float, most: float) -> None:
        """Begin at a value.

        Args:
            name: of the threshold.
            value: may be infinite.
            most: where the arrow keys end; a larger value stays until it is moved down.
        """
        super().__init__(name=name, id=f"slider-{name}")
        self.value = value
        self.most = most

    def render(self) -> Content:
        """Draw the name, the bar and the number."""
        share = self.most if self.value == math.inf else self.value
        drawn = bar(share, self.most, BAR_WIDTH)
        return Content(f"{(self.name or '').ljust(NAME_WIDTH)}{drawn} {self.value:6.2f}")

    def show(self, value: float, most: float) -> None:
        """Show another value, on another scale."""
        self.value, self.most = value, most
        self.refresh()

    def action_move(self, by: int) -> None:
        """Move by some steps, within the scale."""
        if by > 0 and self.value >= self.most:
            return
        start = min(max(self.value, 0.0), self.most)
        step = SHARE_STEP if self.most <= 1 else BITS_STEP
        self.value = round(min(max(start + by * step, 0.0), self.most), 4)
        self.refresh()
        self.post_message(self.Changed())
