"""The page behind ? and F1: the keys, the strategies, the measurements, the marks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.widgets import Label, Static

from entropix_mlx.profiles.profile import Profile

from ..help_text import ALTERNATIVES, marks, measurements, strategies
from .dialogs import Dialog


class HelpScreen(Dialog[None]):
    """Explains the screen."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("f1,question_mark,q", "dismiss", "Close")]

    def __init__(self, profile: Profile, groups: Mapping[str, Sequence[BindingType]]) -> None:
        """Make the page; each group of bindings is a column under its heading."""
        super().__init__()
        self._profile = profile
        self._groups = groups

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Label("↑ ↓ scroll, Escape closes", classes="hint")
            with Horizontal(classes="keys"):
                for heading, bindings in self._groups.items():
                    yield Static(_key_table(heading, bindings))
            title = f"What the colours mean, with the numbers of {self._profile.name}"
            yield Static(_section(title, strategies(self._profile)))
            yield Static(_section("What is measured", measurements(self._profile)))
            yield Static(_section("Alternatives", Content(ALTERNATIVES)))
            yield Static(_section("Marks around tokens", marks()))


def _section(heading: str, content: Content) -> Content:
    return Content("\n").join([Content.styled(heading, "bold"), content, Content()])


def _key_table(heading: str, bindings: Sequence[BindingType]) -> Content:
    named = (b for b in bindings if isinstance(b, Binding) and b.description)
    lines = (f"{b.key_display:<9}{b.description}" for b in named)
    return _section(heading, Content("\n".join(lines)))
