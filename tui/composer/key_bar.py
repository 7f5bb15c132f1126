"""The last line: the keys that do something now, the most important first."""

from __future__ import annotations

from collections.abc import Callable

from textual import events
from textual.binding import Binding
from textual.content import Content
from textual.screen import Screen
from textual.style import Style
from textual.widget import Widget

from ..keys import spelt

KEY = Style(bold=True)
SEPARATOR = "  "


class KeyBar(Widget):
    """Shows as many keys as fit, each whole; a click presses one."""

    ALLOW_SELECT = False
    DEFAULT_CSS = """
    KeyBar {
        dock: bottom;
        height: 1;
        padding: 0 1;
        text-wrap: nowrap;
        color: $footer-foreground;
        background: $footer-background;
    }
    """

    def __init__(self, order: tuple[str, ...], useful: Callable[[], dict[str, bool]]) -> None:
        """Set up.

        Args:
            order: the ids of bindings, the most important first; others are not shown.
            useful: returns, for the ids of some bindings, whether they would do something now.
        """
        super().__init__()
        self._order = order
        self._useful = useful

    def on_mount(self) -> None:
        """Follow the focus."""
        self.screen.bindings_updated_signal.subscribe(self, self._follow)

    def on_click(self, event: events.Click) -> None:
        """Press the key under the mouse."""
        if key := event.style.meta.get("key"):
            self.app.simulate_key(key)

    @property
    def shown(self) -> list[Binding]:
        """The bindings that would do something now, the most important first."""
        active = {b.binding.id: b.binding for b in self.screen.active_bindings.values()}
        useful = self._useful()
        names = (name for name in self._order if useful.get(name, True))
        return [active[name] for name in names if name in active]

    def render(self) -> Content:
        """Return the keys that fit."""
        line, width = Content(), self.content_size.width
        for binding in self.shown:
            part = self._part(binding)
            if line:
                part = Content(SEPARATOR) + part
            if line.cell_length + part.cell_length <= width:
                line += part
        return line

    def _part(self, binding: Binding) -> Content:
        meta = Style.from_meta({"key": binding.key.partition(",")[0]})
        return Content.assemble((spelt(binding), KEY + meta), (f" {binding.description}", meta))

    def _follow(self, _: Screen[object]) -> None:
        if self.is_attached:
            self.refresh()
