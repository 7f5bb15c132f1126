"""A text that grows: its end stays in sight once it is too long, until the user scrolls away."""

from __future__ import annotations

from textual.containers import VerticalScroll

from ..blank import Blank


class Following(Blank, VerticalScroll):
    """Stands at the top while it is short."""

    def watch_show_vertical_scrollbar(self, shown: bool) -> None:
        """Follow the end of what does not fit."""
        self.anchor(shown and self.follows)

    @property
    def follows(self) -> bool:
        """Whether there is something whose end matters."""
        return True
