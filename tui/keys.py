"""What the keys are for, read off their bindings: for the help page and the command palette.

A binding's tooltip is written ``Title: explanation``. The help page lists keys with titles; the
palette offers every binding that has an explanation. Keys that belong to a pair, such as ← and →,
have one tooltip, on the binding that displays both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.dom import DOMNode


def key_rows(bindings: Iterable[BindingType]) -> list[tuple[str, str]]:
    """Return the keys of bindings as people write them, each with its title."""
    return [(spelt(b), b.tooltip.partition(": ")[0]) for b in _explained(bindings)]


def palette_commands(
    app: App[None], node: DOMNode, bindings: Iterable[BindingType]
) -> Iterator[SystemCommand]:
    """Yield a command for each binding of a node that has an explanation."""
    for binding in _explained(bindings):
        title, _, explanation = binding.tooltip.partition(": ")
        if explanation:
            action = partial(app.run_action, binding.action, node)
            yield SystemCommand(title, explanation, action)


def _explained(bindings: Iterable[BindingType]) -> Iterator[Binding]:
    return (b for b in bindings if isinstance(b, Binding) and b.tooltip)


def spelt(binding: Binding) -> str:
    """Return the first key of a binding as it is printed on a keyboard: ``Ctrl+R``."""
    parts = [binding.key_display] if binding.key_display else _first(binding.key).split("+")
    return "+".join(part[:1].upper() + part[1:] for part in parts)


def _first(keys: str) -> str:
    return keys.partition(",")[0]
