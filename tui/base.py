"""What both apps share because Textual asks the app itself for it: style sheet, clipboard, help."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from textual.app import App, ComposeResult, SystemCommand
from textual.binding import Binding, BindingType
from textual.filter import LineFilter
from textual.screen import Screen
from textual.theme import BUILTIN_THEMES

from entropix_mlx.chat.slash import Command
from entropix_mlx.configuration import KEYS, SCREEN, THEME, Configuration, Value, change
from entropix_mlx.errors import ConfigurationError

from .blank import Ground
from .composer.composer import Composer
from .composer.key_bar import KeyBar
from .contrast import ReadableColours
from .keys import impossible, palette_commands
from .screens.help import HelpScreen
from .transcript.transcript import Transcript
from .workspace import Workspace

APPS = ("chat", "view")
"""Groups of keys that only one of the apps has; a configuration may name both."""


class WorkspaceApp(App[None]):
    """An app whose main screen is a workspace and a footer.

    It handles no messages, since Textual would call its handlers beside those of a subclass.
    """

    CSS_PATH = Path(__file__).with_name("entropix.tcss")
    TITLE = "entropix"
    HORIZONTAL_BREAKPOINTS = [  # noqa: RUF012 - as Textual types it
        (0, "-slim"),  # the panel lies below the text
        (80, "-narrow"),  # beside it, when it is asked for
        (100, "-wide"),
        (150, "-huge"),
    ]
    VERTICAL_BREAKPOINTS = [  # noqa: RUF012
        (0, "-flat"),  # no room for lines that explain
        (12, "-low"),  # none for the plane below the text
        (36, "-tall"),
    ]
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f1", "help", "Help", tooltip="Help: H, V, strategies, marks, keys", id="app.help"),
        Binding(
            "ctrl+p",
            "command_palette",
            "Commands",
            show=False,
            priority=True,
            tooltip="All commands, themes",
            id="app.palette",
        ),
        Binding("ctrl+q", "quit", "Quit", show=False, priority=True, tooltip="Quit", id="app.quit"),
    ]

    typed_commands: ClassVar[tuple[Command, ...]] = ()
    """What can be typed in a field, for the help page."""
    key_order: ClassVar[tuple[str, ...]] = (
        "transcript.leave",
        "composer.tab",
        "app.escape",
        "view.play",
        "view.faster",
        "transcript.left",
        "transcript.up",
        "transcript.fork",
        "transcript.next_mark",
        "transcript.previous",
        "app.help",
        "app.palette",
        "chat.regenerate",
        "chat.tune",
        "chat.chats",
        "chat.duel",
        "app.panel",
        "transcript.thoughts",
        "transcript.marks",
        "chat.edit",
        "transcript.copy",
        "app.markdown",
        "app.quit",
    )
    """The ids of the bindings that the last line names, the most important first."""

    def __init__(self, workspace: Workspace, configuration: Configuration | None = None) -> None:
        """Show a workspace.

        Args:
            workspace: the main screen.
            configuration: the theme and keys, and where another theme is written; None for none.

        Raises:
            ConfigurationError: as for `check`.
        """
        super().__init__()
        self.workspace = workspace
        self._configuration = configuration
        if configuration is not None:
            self.check(configuration)
            if configuration.theme is not None:
                self.theme = configuration.theme
            self.set_keymap(configuration.keys)
        self._readable = ReadableColours()

    @classmethod
    def check(cls, configuration: Configuration) -> None:
        """Check what only the screen knows of a configuration: the theme, and the keys.

        Raises:
            ConfigurationError: there is no such theme, nothing that a key could be for, or no such
                key.
        """
        if configuration.theme is not None and configuration.theme not in BUILTIN_THEMES:
            names = ", ".join(BUILTIN_THEMES)
            raise configuration.fault(SCREEN, THEME, f"there is no such theme: {names}")
        groups = (cls, WorkspaceApp, Workspace, Transcript, Composer)
        bindings = [binding for group in groups for binding in group.BINDINGS]
        known = {binding.id for binding in bindings if isinstance(binding, Binding) and binding.id}
        for action, keys in configuration.keys.items():
            group = action.partition(".")[0]
            elsewhere = group in APPS and not any(name.startswith(f"{group}.") for name in known)
            if action not in known and not elsewhere:
                told = "no key has this name: see docs/configuration.md for those there are"
                raise configuration.fault(KEYS, action, told)
            if (key := impossible(keys)) is not None:
                told = f'there is no key {key!r}: write it as "ctrl+j", "f9" or "question_mark"'
                raise configuration.fault(KEYS, action, told)

    def remember_theme(self) -> None:
        """Write each theme into the configuration file that the user chooses from now on."""
        self.theme_changed_signal.subscribe(
            self, lambda theme: self.remember(SCREEN, {THEME: theme.name})
        )

    @property
    def configured_options(self) -> Mapping[str, object]:
        """The options of the configuration file as it is now; none if it cannot be read."""
        path = self._configuration.path if self._configuration is not None else None
        try:
            return Configuration.load(path).options if path is not None and path.exists() else {}
        except ConfigurationError:  # `remember` says so
            return {}

    def remember(self, section: str, values: Mapping[str, Value | None]) -> None:
        """Write values into the configuration file; None takes one away."""
        if self._configuration is None:
            return
        try:
            change(self._configuration.path, section, values)
        except ConfigurationError as error:
            self.notify(str(error), severity="error", markup=False)

    def get_default_screen(self) -> Ground:
        """Return the screen below all others."""
        return Ground(id="_default")

    def compose(self) -> ComposeResult:
        """Lay out the workspace above the footer."""
        yield self.workspace
        yield KeyBar(self.key_order, self.useful_keys)

    def useful_keys(self) -> dict[str, bool]:
        """Return which of the keys that do not always help would do something now.

        Those that would not are not named in the last line.
        """
        pointed = self.workspace.transcript.cursor is not None
        answered = bool(self.workspace.last_steps)
        answer = self.workspace.transcript.answer
        reasoned = answer is not None and answer.has_reasoning
        asking = ("transcript.leave", "transcript.fork", "transcript.previous")
        return {
            "app.escape": pointed,
            "transcript.up": pointed,
            "transcript.left": answered,
            "transcript.next_mark": self.workspace.transcript.stands_out,
            "transcript.marks": answered,
            "transcript.thoughts": reasoned,
            "transcript.copy": answered,
            "app.markdown": answered,
        } | dict.fromkeys(asking, False)

    @property
    def key_groups(self) -> Mapping[str, Sequence[BindingType]]:
        """The bindings of the help page, under their headings."""
        own = [b for b in type(self).BINDINGS if b not in WorkspaceApp.BINDINGS]
        keys = [*own, *Workspace.BINDINGS, *WorkspaceApp.BINDINGS]
        return {"Anywhere": keys, "In the tokens (Tab, and back)": Transcript.BINDINGS}

    def own_keys(self, bindings: Sequence[BindingType]) -> list[BindingType]:
        """Return bindings with the keys that the configuration gives them."""
        keys = self._configuration.keys if self._configuration is not None else {}
        return [
            replace(b, key=keys[b.id], key_display=None)
            if isinstance(b, Binding) and b.id is not None and b.id in keys
            else b
            for b in bindings
        ]

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Return what changes lines after they are drawn; colours first, then what dims them."""
        return [self._readable, *super().get_line_filters()]

    def copy_to_clipboard(self, text: str) -> None:
        """Copy a text: by pbcopy where there is one, since Terminal.app ignores OSC 52."""
        program = shutil.which("pbcopy")
        if program is None:
            super().copy_to_clipboard(text)
        else:
            subprocess.run([program], input=text, text=True, check=False)

    def action_help(self) -> None:
        """Show the keys and the legend."""
        groups = {heading: self.own_keys(keys) for heading, keys in self.key_groups.items()}
        self.push_screen(HelpScreen(self.workspace.profile, groups, self.typed_commands))

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Return the palette's commands: all that keys do, and Textual's own."""
        yield from super().get_system_commands(screen)
        workspace = self.workspace
        yield from palette_commands(self, self, WorkspaceApp.BINDINGS)
        if type(self).BINDINGS is not WorkspaceApp.BINDINGS:
            yield from palette_commands(self, self, type(self).BINDINGS)
        yield from palette_commands(self, workspace, workspace.BINDINGS)
        yield from palette_commands(self, workspace.transcript, Transcript.BINDINGS)
