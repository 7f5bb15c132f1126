"""The keys: what they are for, read off their bindings, and the last line, which names them.

A binding's tooltip is written ``Title: explanation``. The help page lists keys with titles; the
palette offers every binding that has an explanation. Keys that belong to a pair, such as ← and →,
have one tooltip, on the binding that displays both.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from textual import events
from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.command import CommandPalette
from textual.content import Content
from textual.dom import DOMNode
from textual.errors import NoWidget
from textual.geometry import Region
from textual.keys import KEY_TO_UNICODE_NAME, REPLACED_KEYS, Keys
from textual.screen import Screen
from textual.style import Style
from textual.widget import Widget
from textual.worker import Worker

MODIFIERS = {"ctrl", "alt", "shift", "super", "meta", "hyper"}
KEY = Style(bold=True)
SEPARATOR = "  "
_NAMED = {key.value.rpartition("+")[2] or key.value for key in Keys if "<" not in key.value}


def key_rows(bindings: Iterable[BindingType]) -> list[tuple[str, str]]:
    """Return the keys of bindings as people write them, each with its title."""
    return [(spelled(b), b.tooltip.partition(": ")[0]) for b in _explained(bindings)]


def palette_commands(
    app: App[None], node: DOMNode, bindings: Iterable[BindingType]
) -> Iterator[SystemCommand]:
    """Yield a command for each binding of a node that has an explanation."""
    for binding in _explained(bindings):
        title, _, explanation = binding.tooltip.partition(": ")
        if explanation:
            action = partial(app.run_action, binding.action, node)
            yield SystemCommand(title, explanation, action)


class Palette(CommandPalette):
    """Textual's, which fails where a letter is typed right behind the Escape that closes it, and
    where a click comes from a screen that was larger."""

    def run_worker(self, work: Any, *arguments: Any, **options: Any) -> Worker[Any]:
        """Run a search, whose failure does not end the app."""
        return super().run_worker(work, *arguments, **options | {"exit_on_error": False})

    def get_widget_at(self, x: int, y: int) -> tuple[Widget, Region]:
        """Return what is clicked on: beside a screen that has shrunk, the background."""
        try:
            return super().get_widget_at(x, y)
        except NoWidget:
            return self, self.region


def _explained(bindings: Iterable[BindingType]) -> Iterator[Binding]:
    return (b for b in bindings if isinstance(b, Binding) and b.tooltip)


def spelled(binding: Binding) -> str:
    """Return the first key of a binding as people write it: ``Ctrl+R``, and ``f`` alone."""
    if binding.key_display:
        return binding.key_display
    parts = _first(binding.key).split("+")
    return parts[0] if len(parts[0]) == 1 else "+".join(p[:1].upper() + p[1:] for p in parts)


def _first(keys: str) -> str:
    return keys.partition(",")[0]


def unknown_key(keys: str) -> str | None:
    """Return the first of some keys, separated by commas, that no keyboard has; None if all exist.

    Names are Textual's, in small letters: ``ctrl+j``, ``f9``, ``question_mark``, or ``?``.
    """
    return next((key for key in keys.split(",") if not _exists(key.strip())), None)


def _exists(key: str) -> bool:
    if len(key) == 1:
        return key.isprintable() and not key.isspace()
    *modifiers, name = key.split("+")
    known = set(modifiers) <= MODIFIERS and len(set(modifiers)) == len(modifiers)
    return known and (name in _NAMED or _is_character(name, alone=not modifiers))


def _is_character(name: str, alone: bool) -> bool:
    """Return whether a character has a name; with Ctrl and the like, letters are small."""
    if len(name) == 1:
        return name.isprintable() and not name.isspace() and (alone or name == name.lower())
    original = REPLACED_KEYS.get(name, name)
    try:
        unicodedata.lookup(KEY_TO_UNICODE_NAME.get(original, original.replace("_", " ")))
    except KeyError:
        return False
    return name == name.lower()


class KeyBar(Widget):
    """The last line: as many useful keys as fit, each whole; a click presses one."""

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
        """Show the bindings of these ids, in this order, unless `useful` says False for one."""
        super().__init__()
        self._order = order
        self._useful = useful

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, self._follow)

    def on_click(self, event: events.Click) -> None:
        if key := event.style.meta.get("key"):
            self.app.simulate_key(key)

    @property
    def shown(self) -> list[Binding]:
        active = {b.binding.id: b.binding for b in self.screen.active_bindings.values()}
        useful = self._useful()
        names = (name for name in self._order if useful.get(name, True))
        return [active[name] for name in names if name in active]

    def render(self) -> Content:
        line, width = Content(), self.content_size.width
        for binding in self.shown:
            part = _part(binding)
            if line:
                part = Content(SEPARATOR) + part
            if line.cell_length + part.cell_length <= width:
                line += part
        return line

    def _follow(self, _: Screen[object]) -> None:
        if self.is_attached:
            self.refresh()


def _part(binding: Binding) -> Content:
    meta = Style.from_meta({"key": _first(binding.key)})
    return Content.assemble((spelled(binding), KEY + meta), (f" {binding.description}", meta))
