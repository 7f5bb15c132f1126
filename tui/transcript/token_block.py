"""Some lines of an answer, of which only those that change are drawn anew."""

from __future__ import annotations

import itertools

from textual.content import Content
from textual.geometry import Region
from textual.widgets import Static

EMPTY = Content()
RESERVED = 4
"""A block that grows takes so many lines at once: laying the screen out costs more than a token."""


class TokenBlock(Static):
    """Some lines of an answer."""

    def __init__(self, content: Content = EMPTY, grows: bool = False) -> None:
        """Begin with some content; where it grows, with room for what comes next."""
        super().__init__()
        self._content = content
        self._lines: list[Content] = []
        if grows:
            self.styles.min_height = RESERVED

    @property
    def visual(self) -> Content:
        """What is shown."""
        return self._content

    def render(self) -> Content:
        """Return what is shown."""
        return self._content

    def show(self, content: Content, grows: bool = False) -> None:
        """Show other content; the screen is laid out anew only for another number of lines.

        Args:
            content: the tokens.
            grows: whether more will come: then there may be empty lines at the end.
        """
        width, height = self.content_size.width, self.content_size.height
        known, self._lines = self._lines, content.wrap(width) if width else []
        self._content = content
        lines = len(self._lines)
        if grows and lines > 1 and not self._lines[-1]:
            lines -= 1  # a line has just ended; whether there is another one is not known yet
        room = -(-lines // RESERVED) * RESERVED if grows else lines
        if not width or height != room:
            self.styles.min_height = room if room > lines else None
            self.refresh(layout=True)
            return
        pairs = itertools.zip_longest(self._lines, known)
        changed = [
            y for y, (new, old) in enumerate(pairs) if not (new and old and new.is_same(old))
        ]
        if changed:
            self.refresh(*(Region(0, y, width, 1) for y in changed))
