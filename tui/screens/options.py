"""The options of a generation that are plain numbers: most tokens, temperature, top-p, …"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.events import DescendantFocus
from textual.screen import ModalScreen
from textual.widgets import Input, Label

from entropix_mlx.errors import EntropixError
from entropix_mlx.profiles.fields import Number
from entropix_mlx.profiles.sampler_specs import parameters, specs
from entropix_mlx.settings import Settings

MOST = "max_tokens"
NAME_WIDTH = 20


@dataclass(frozen=True)
class Chosen:
    """What the user settled on."""

    settings: Settings
    kept: dict[str, float | None] | None
    """The options to be written into the configuration file; None if they hold for now only."""


class OptionsDialog(ModalScreen[Chosen | None]):
    """Lets the user change them; what a sampler does not take is not shown."""

    AUTO_FOCUS = "Input"

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+s", "take", "Use", priority=True, id="options.take"),
        Binding("ctrl+d", "take(True)", "Keep", priority=True, id="options.keep"),
        Binding("escape", "cancel", "Cancel", id="options.cancel"),
    ]

    def __init__(self, settings: Settings) -> None:
        super().__init__(classes="dialog")
        self._settings = settings
        takes = specs()[settings.sampler].takes
        shared = {n: p for n, p in parameters().items() if isinstance(p.rule, Number)}
        self._names = [name for name in shared if name in takes]

    def compose(self) -> ComposeResult:
        """Make a row for each."""
        with Vertical():
            yield Label(f"Options of {self._settings.sampler}")
            with VerticalScroll(id="options"):
                yield from self._row(MOST, "the most tokens of an answer; -1: no limit")
                for name in self._names:
                    yield from self._row(name, parameters()[name].help)
            yield Label("", id="fault", classes="hint")
            told = "Enter or Ctrl+S: from the next answer on; Ctrl+D: also keep as defaults"
            yield Label(told, classes="hint")

    def on_descendant_focus(self, event: DescendantFocus) -> None:
        """Say in full what the option is for: its field may be too short for that."""
        if isinstance(event.widget, Input):
            self.query_one("#fault", Label).update(Content(event.widget.placeholder))

    def on_input_submitted(self) -> None:
        """Take the options."""
        self.action_take()

    def action_take(self, keep: bool = False) -> None:
        """Take the options, if an answer could use them; `keep` them for other chats, too."""
        try:
            values: dict[str, Any] = {n: self._number(n) for n in [MOST, *self._names]}
            if values[MOST] is None:
                values[MOST] = Settings.max_tokens
            settings = replace(self._settings, **values)
            settings.check()
        except (ValueError, EntropixError) as error:
            self.query_one("#fault", Label).update(Content(str(error)))
        else:
            self.dismiss(Chosen(settings, values if keep else None))

    def action_cancel(self) -> None:
        """Take none."""
        self.dismiss(None)

    def _row(self, name: str, told: str) -> ComposeResult:
        value = getattr(self._settings, name)
        with Horizontal(classes="row"):
            yield Label(name.replace("_", " ").ljust(NAME_WIDTH))
            text = "" if value is None else str(value)
            yield Input(text, placeholder=told, id=name, compact=True)

    def _number(self, name: str) -> Any:
        text = self.query_one(f"#{name}", Input).value.strip()
        if not text:
            return None
        rule = parameters()[name].rule if name != MOST else None
        whole = not isinstance(rule, Number) or rule.whole
        try:
            return int(text) if whole else float(text)
        except ValueError:
            kind = "a whole number" if whole else "a number"
            raise ValueError(f"{name} must be {kind}, not {text!r}") from None
