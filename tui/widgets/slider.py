"""A threshold that the arrow keys move."""

from __future__ import annotations

import math
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message
from textual.widget import Widget

from ..drawing import ENTROPY_SCALE, VARENTROPY_SCALE, bar

NAME_WIDTH, BAR_WIDTH = 24, 12


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

    def __init__(self, name: str, value: float) -> None:
        """Begin at a value."""
        super().__init__(name=name, id=f"slider-{name}")
        self.value = value
        if "margin" in name:
            self._most, self._step = 1.0, 0.02
        else:
            self._most = VARENTROPY_SCALE if "varentropy" in name else ENTROPY_SCALE
            self._step = 0.1

    def render(self) -> Content:
        """Draw the name, the bar and the number."""
        share = self._most if self.value == math.inf else self.value
        drawn = bar(share, self._most, BAR_WIDTH)
        return Content(f"{(self.name or '').ljust(NAME_WIDTH)}{drawn} {self.value:6.2f}")

    def action_move(self, by: int) -> None:
        """Move by some steps, within the scale."""
        start = min(max(self.value, 0.0), self._most)
        self.value = round(min(max(start + by * self._step, 0.0), self._most), 4)
        self.refresh()
        self.post_message(self.Changed())
