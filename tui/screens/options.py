"""The options of a generation that are plain numbers: max tokens, temperature, top-p, …"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.events import DescendantFocus
from textual.widgets import Input, Label

from entropix_mlx.errors import EntropixError
from entropix_mlx.profiles.fields import Number
from entropix_mlx.profiles.sampler_specs import parameters, specs
from entropix_mlx.settings import Settings

from .dialogs import Dialog, field_row, number_in

MAX_TOKENS = "max_tokens"
NAME_WIDTH = 20


@dataclass(frozen=True)
class ChosenOptions:
    """The result of the dialog."""

    settings: Settings
    defaults: dict[str, float | None] | None
    """The options for the configuration file; None if they hold for this chat only."""


class OptionsDialog(Dialog[ChosenOptions]):
    """Changes the options; those that a sampler does not take are not shown."""

    AUTO_FOCUS = "Input"

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+s", "take", "Use", priority=True),
        Binding("ctrl+d", "take(True)", "Save as default", priority=True),
    ]

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self._settings = settings
        takes = specs()[settings.sampler].takes
        shared = {n: p for n, p in parameters().items() if isinstance(p.rule, Number)}
        self._names = [name for name in shared if name in takes]

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Label(f"Options of {self._settings.sampler}")
            with VerticalScroll(id="options"):
                yield from self._row(
                    MAX_TOKENS, "maximum length of an answer in tokens; -1: no limit"
                )
                for name in self._names:
                    yield from self._row(name, parameters()[name].help)
            yield Label("", id="fault", classes="hint")
            keys = "Enter or Ctrl+S: from the next answer on; Ctrl+D: also save as default"
            yield Label(keys, classes="hint")

    def on_descendant_focus(self, event: DescendantFocus) -> None:
        """Show the whole explanation of an option: its field may be too short for it."""
        if isinstance(event.widget, Input):
            self.query_one("#fault", Label).update(Content(event.widget.placeholder))

    def on_input_submitted(self) -> None:
        self.action_take()

    def action_take(self, save: bool = False) -> None:
        """Take the options, if an answer could use them; `save` them as defaults, too."""
        try:
            values: dict[str, Any] = {n: self._number(n) for n in [MAX_TOKENS, *self._names]}
            if values[MAX_TOKENS] is None:
                values[MAX_TOKENS] = Settings.max_tokens
            settings = replace(self._settings, **values)
            settings.check()
        except (ValueError, EntropixError) as error:
            self.query_one("#fault", Label).update(Content(str(error)))
        else:
            self.dismiss(ChosenOptions(settings, values if save else None))

    def _row(self, name: str, explanation: str) -> ComposeResult:
        label = name.replace("_", " ").ljust(NAME_WIDTH)
        return field_row(label, name, getattr(self._settings, name), explanation)

    def _number(self, name: str) -> float | None:
        rule = parameters()[name].rule if name != MAX_TOKENS else None
        whole = not isinstance(rule, Number) or rule.whole
        return number_in(self.query_one(f"#{name}", Input), whole)
