"""A checkbox that can be read without colours: Textual's shows an X whether it is on or not."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Checkbox


class Tick(Checkbox):
    """Shows ✓, or nothing."""

    def render(self) -> Content:
        """Return the box and its label."""
        self.BUTTON_INNER = "✓" if self.value else " "
        return super().render()
