"""Containers that show nothing of their own: they cost next to nothing when something in them does.

Textual draws every widget of the screen, and each of its lines through all line filters, whenever
anything changes anywhere. Most of these lines are the empty backgrounds of containers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual import events
from textual.containers import Vertical, VerticalScroll
from textual.geometry import Region
from textual.screen import Screen
from textual.strip import Strip

if TYPE_CHECKING:
    from textual.widget import Widget as Base
else:
    Base = object  # Textual looks for styles along the first base that is a widget


WIDE, HIGH = 100, 20
"""Columns and lines from which on the panel stands beside the text."""
FLAT = 14
"""Lines below which there is no room for lines that explain."""
SMALLEST = 24, 6


class Blank(Base):
    """Mixed into a container without borders, before the container's class."""

    def render_lines(self, crop: Region) -> list[Strip]:
        if self.app.no_color or self.app.native_ansi_color:  # then filters do change it
            return super().render_lines(crop)
        return [Strip.blank(crop.width, self.visual_style.rich_style)] * crop.height


class Sized(Base):
    """Mixed into a screen: its classes say how much room there is, see entropix.tcss."""

    def on_resize(self, event: events.Resize) -> None:
        width, height = event.size
        self.set_class(width < WIDE or height < HIGH, "-small")
        self.set_class(height < FLAT, "-flat")
        self.set_class(width < SMALLEST[0] or height < SMALLEST[1], "-tiny")


class Column(Blank, Vertical):
    """One thing below the other."""


class MainScreen(Sized, Blank, Screen[None]):
    """The screen below all others."""


class AutoScroll(Blank, VerticalScroll):
    """A text that grows: its end stays in sight once it is too long, until the user scrolls away.

    It stands at the top while it is short.
    """

    def watch_show_vertical_scrollbar(self, shown: bool) -> None:
        self.anchor(shown and self.follows_end)

    @property
    def follows_end(self) -> bool:
        return True
