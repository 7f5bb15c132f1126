"""The keys: one line says what a key does, for the footer, the palette and the help page.

Every action has a key that a Mac laptop sends in any terminal without fn and Option: Ctrl with a
letter, or a letter in the tokens. Function keys are second keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from textual.app import App, SystemCommand
from textual.await_complete import AwaitComplete
from textual.binding import Binding, BindingType
from textual.command import CommandPalette
from textual.dom import DOMNode
from textual.errors import NoWidget
from textual.geometry import Region
from textual.keys import format_key
from textual.widget import Widget
from textual.worker import Worker

SPOKEN = {"left": "←", "right": "→", "up": "↑", "down": "↓", "escape": "Esc", "enter": "Enter"}


def bind(
    id: str,
    keys: str,
    action: str,
    title: str = "",
    explanation: str = "",
    *,
    shown: str = "",
    footer: bool = False,
    priority: bool = False,
) -> Binding:
    """Return a binding that a configuration file can change by its id.

    Args:
        keys: Textual's names, separated by commas; the first one is displayed.
        title: of the action; empty for the twin of another key, such as → beside ←.
        explanation: for the palette, which lists the actions that have one.
        shown: the keys for people, where the first one does not say it.
        footer: whether the last line names it.
    """
    first = keys.partition(",")[0]
    display = shown or spelled(first)
    return Binding(keys, action, title, footer, display, priority, tooltip=explanation, id=id)


def spelled(key: str) -> str:
    """Return a key as people write it: ``Ctrl+R``, and ``f`` alone."""
    *modifiers, name = key.split("+")
    name = SPOKEN.get(name) or format_key(name)
    if modifiers or len(name) > 1:
        name = name[:1].upper() + name[1:]
    return "+".join([*(modifier.capitalize() for modifier in modifiers), name])


def palette_commands(
    app: App[None], node: DOMNode, bindings: Iterable[BindingType]
) -> Iterator[SystemCommand]:
    """Yield a command for each binding of a node that has an explanation and is of use now."""
    for binding in bindings:
        if isinstance(binding, Binding) and binding.tooltip:
            owner = app if binding.action.startswith("app.") else node
            name = binding.action.removeprefix("app.").partition("(")[0]
            if owner.check_action(name, ()) is not False:
                title = f"{binding.description} ({binding.key_display})"
                action = partial(app.run_action, binding.action, node)
                yield SystemCommand(title, binding.tooltip, action)


class Palette(CommandPalette):
    """Textual's, which fails where a letter is typed right behind the Escape that closes it, and
    where a click comes from a screen that was larger."""

    def dismiss(self, result: Any = None) -> AwaitComplete:
        """Close the palette, unless a key that came before did."""
        return super().dismiss(result) if self.app.screen is self else AwaitComplete()

    def run_worker(self, work: Any, *arguments: Any, **options: Any) -> Worker[Any]:
        """Run a search, whose failure does not end the app."""
        return super().run_worker(work, *arguments, **options | {"exit_on_error": False})

    def get_widget_at(self, x: int, y: int) -> tuple[Widget, Region]:
        """Return what is clicked on: beside a screen that has shrunk, the background."""
        try:
            return super().get_widget_at(x, y)
        except NoWidget:
            return self, self.region
