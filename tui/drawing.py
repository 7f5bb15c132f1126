"""Drawing for several widgets: bars, runs of styled cells, and lines that change often."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

from textual.content import Content
from textual.geometry import Region
from textual.reactive import reactive
from textual.strip import Strip
from textual.style import Style
from textual.widgets import Static

from .answer import Answer

OVERFLOW = "▶"
"""The end of a bar whose value lies beyond the scale."""
EIGHTHS = " ▏▎▍▌▋▊▉█"
HEIGHTS = " ▁▂▃▄▅▆▇█"
DIM = Style(dim=True)


def bar(value: float, most: float, width: int) -> str:
    """Return a bar of `width` cells that is full at `most`, and marked beyond that."""
    if width and most < value < math.inf:
        return "█" * (width - 1) + OVERFLOW
    share = min(max(value / most, 0.0), 1.0) if math.isfinite(value) else 0.0
    eighths = round(share * width * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (EIGHTHS[rest] if rest else "")).ljust(width)


def runs(cells: Iterable[tuple[str, Style]]) -> Content:
    """Join cells of one style each: few long pieces are drawn faster than many short ones.

    Styles are compared by identity, since comparing their fields costs more than all else here.
    """
    pieces = (list(run) for _, run in itertools.groupby(cells, key=lambda cell: id(cell[1])))
    return Content.assemble(*(("".join(text for text, _ in run), run[0][1]) for run in pieces))


class Drawn(Static):
    """A content of which only the lines that changed are drawn again.

    Where text cannot be selected, each line is also rendered by itself: `Static` renders its whole
    content, with the position of every piece of text.
    """

    ALLOW_SELECT = False
    DEFAULT_CSS = "Drawn { text-wrap: nowrap; text-overflow: clip; }"

    answer: reactive[Answer | None] = reactive(None, always_update=True, init=False, repaint=False)
    """What a gauge shows; bound to that of the workspace."""

    def __init__(self, content: Content | None = None, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._content = content or Content()
        self._lines: list[Content] = []

    def draw(self) -> None:
        """Draw for the width and height that there are; subclasses that show an answer do."""

    def watch_answer(self) -> None:
        self.draw()

    def on_resize(self) -> None:
        self.draw()

    @property
    def visual(self) -> Content:
        return self._content

    def render(self) -> Content:
        return self._content

    def show(self, content: Content, room: int = 1) -> None:
        """Show a content; the screen is laid out again only for another height.

        Args:
            content: its lines are wrapped at the widget's width.
            room: the height is a multiple of so many lines.
        """
        width = self.content_size.width
        known, self._lines = self._lines, content.wrap(width) if width else []
        self._content = content
        lines = len(self._lines)
        if room > 1 < lines and not self._lines[-1]:
            lines -= 1  # a line has just ended; whether another one follows is not known yet
        height = -(-lines // room) * room
        if not width or self.content_size.height != height:
            self.styles.min_height = height if height > lines else None
            self.refresh(layout=True)
            return
        pairs = enumerate(itertools.zip_longest(self._lines, known))
        changed = [y for y, (new, old) in pairs if not (new and old and new.is_same(old))]
        if changed:
            self.refresh(*(Region(0, y, width, 1) for y in changed))

    def render_line(self, y: int) -> Strip:
        if self.allow_select:
            return super().render_line(y)
        base, width = self.visual_style, self.content_size.width
        line = self._lines[y] if y < len(self._lines) else Content()
        return Strip(line.render_segments(base)).adjust_cell_length(width, base.rich_style)
