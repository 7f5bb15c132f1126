"""Lines that are drawn again many times a second, such as gauges: only those that changed are.

A `Static` turns its whole content into styled cells again whenever it changes, and records for
each its position, so that it can be selected. That is most of what a live screen would cost.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.segment import Segment
from rich.style import Style as RichStyle
from textual.content import Content
from textual.geometry import Region, Size
from textual.reactive import reactive
from textual.strip import Strip
from textual.style import Style
from textual.widgets import Static

from ..answer import Answer

MOST_STYLES = 500
"""Rendered styles that a widget remembers."""
Line = tuple[tuple[str, Style | None], ...]
"""Texts and their styles; None is that of the widget."""


class Drawn(Static):
    """Shows a content whose lines are no longer than the widget is wide; nothing is wrapped."""

    ALLOW_SELECT = False

    answer: reactive[Answer | None] = reactive(None, always_update=True, init=False, repaint=False)
    """What a gauge shows; bound to that of the workspace."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._content = Content()
        self._lines: list[Line] = [()]
        self._base: Style | None = None  # upon which the rendered styles lie
        self._known_styles: dict[int, tuple[Style, RichStyle]] = {}

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

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Return the number of lines: Textual would count those of a text that it wraps.

        After a resize it asks before the content is drawn for the new width.
        """
        return len(self._lines)

    def draw_content(self, content: Content) -> None:
        """Show a content; lay the screen out again only for another number of lines."""
        lines, known = lines_of(content), self._lines
        self._content, self._lines = content, lines
        if len(lines) != len(known):
            self.refresh(layout=True)
            return
        width = self.content_size.width
        changed = [y for y, line in enumerate(lines) if line != known[y]]
        if changed:
            self.refresh(*(Region(0, y, width, 1) for y in changed))

    def render_line(self, y: int) -> Strip:
        base = self.visual_style
        if base != self._base:
            self._base, self._known_styles = base, {}
        width, rest = self.content_size.width, self._rich_style(base, base)
        line = self._lines[y] if y < len(self._lines) else ()
        segments = [Segment(text, self._rich_style(base, style or base)) for text, style in line]
        return Strip(segments).adjust_cell_length(width, rest)

    def _rich_style(self, base: Style, style: Style) -> RichStyle:
        """Return a style upon that of the widget; those that were met before are remembered."""
        found = self._known_styles.get(id(style))
        if found is None:
            if len(self._known_styles) >= MOST_STYLES:  # somebody makes styles for every drawing
                self._known_styles.clear()
            found = self._known_styles[id(style)] = style, (base + style).rich_style
        return found[1]


def lines_of(content: Content) -> list[Line]:
    """Return the lines of a content whose styles do not overlap, as `runs` and `assemble` make it.

    Raises:
        TypeError: a style is given by its name.
    """
    lines: list[list[tuple[str, Style | None]]] = [[]]
    for text, style in _pieces(content):
        first, *others = text.split("\n")
        if first:
            lines[-1].append((first, style))
        lines += [[(other, style)] if other else [] for other in others]
    return [tuple(line) for line in lines]


def _pieces(content: Content) -> Iterator[tuple[str, Style | None]]:
    text, place = content.plain, 0
    for start, end, style in content.spans:
        if isinstance(style, str):
            raise TypeError(f"a style, not the name of one: {style!r}")
        if start > place:
            yield text[place:start], None
        yield text[start:end], style
        place = end
    if place < len(text):
        yield text[place:], None
