"""The page behind F1: the measurements, the strategies, the marks, the keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.widgets import Label, Static

from entropix_mlx.chat.slash import Command, listing
from entropix_mlx.profiles.profile import Profile

from ..help_text import ALTERNATIVES, marks, measurements, strategies
from ..keys import key_rows
from .dialogs import Dialog


class HelpScreen(Dialog[None]):
    """Explains the screen."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("f1,q", "dismiss", "Close")]

    def __init__(
        self,
        profile: Profile,
        groups: Mapping[str, Sequence[BindingType]],
        commands: tuple[Command, ...] = (),
    ) -> None:
        """Make the page; each group of bindings is a column under its heading."""
        super().__init__()
        self._profile = profile
        self._groups = groups
        self._commands = commands

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Label("↑ ↓ scroll, Escape closes", classes="hint")
            title = f"What the colours mean, with the numbers of {self._profile.name}"
            yield Static(_section(title, strategies(self._profile)))
            yield Static(_section("What is measured", measurements(self._profile)))
            yield Static(_section("Alternatives", Content(ALTERNATIVES)))
            yield Static(_section("Marks around tokens", marks()))
            with Horizontal(classes="keys"):
                for heading, bindings in self._groups.items():
                    yield Static(_key_table(heading, bindings))
            if self._commands:
                heading = "Commands, typed in the field (@FILE inserts the text of a file)"
                yield Static(_section(heading, Content(listing(self._commands))))


def _section(heading: str, content: Content) -> Content:
    return Content("\n").join([Content.styled(heading, "bold"), content, Content()])


def _key_table(heading: str, bindings: Sequence[BindingType]) -> Content:
    lines = (f"{key:<8}{title}" for key, title in key_rows(bindings))
    return _section(heading, Content("\n".join(lines)))
