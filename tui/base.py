"""The part that both apps share: style sheet, configuration, clipboard, help, and two guards."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar

from rich.console import RenderableType
from rich.traceback import Traceback
from textual._context import active_message_pump
from textual.actions import ActionParseResult
from textual.app import App, ComposeResult, SystemCommand
from textual.await_complete import AwaitComplete
from textual.binding import Binding, BindingType
from textual.dom import DOMNode
from textual.driver import Driver
from textual.filter import LineFilter
from textual.screen import Screen
from textual.theme import BUILTIN_THEMES
from textual.widgets import Static

from entropix_mlx import old_names
from entropix_mlx.chat.slash import Command
from entropix_mlx.configuration import (
    COLOURS,
    FOCUS,
    KEYS,
    SCREEN,
    THEME,
    Configuration,
    Value,
    change,
)
from entropix_mlx.errors import ConfigurationError

from .composer.composer import Composer
from .containers import MainScreen
from .keys import KeyBar, Palette, palette_commands, unknown_key
from .screens.answers import LeastSure
from .screens.help import HelpScreen
from .styles import CHOSEN_COLOURINGS, Colouring, ReadableColours
from .terminal import take_any_bytes
from .transcript.transcript import Transcript
from .workspace import Workspace

TOO_SMALL = "This terminal is too small: enlarge it to 24 columns and 6 lines at least."
APPS = ("chat", "view")
"""Groups of keys that only one of the apps has; a configuration may name both."""


class WorkspaceApp(App[None]):
    """An app whose main screen is a workspace and a footer.

    It handles no messages, since Textual would call its handlers beside those of a subclass.
    """

    CSS_PATH = Path(__file__).with_name("entropix.tcss")
    TITLE = "entropix"
    HORIZONTAL_BREAKPOINTS = [  # noqa: RUF012 - as Textual types it
        (0, "-thin"),  # too small, see `TOO_SMALL`
        (24, "-slim"),  # the panel lies below the text
        (80, "-narrow"),  # beside it, when it is asked for
        (100, "-wide"),
        (150, "-huge"),
    ]
    VERTICAL_BREAKPOINTS = [  # noqa: RUF012
        (0, "-short"),  # too small
        (6, "-flat"),  # no room for lines that explain
        (16, "-low"),  # none for the plane below the text
        (36, "-tall"),
    ]
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f1", "help", "Help", id="app.help", tooltip="Help: H, V, strategies, marks, keys"),
        Binding(
            "ctrl+p", "command_palette", "List commands", id="app.palette", show=False,
            priority=True, tooltip="All commands, themes",
        ),
        Binding(
            "ctrl+s", "save", "Save or share", id="app.save", priority=True,
            tooltip="Save or share: chat, Markdown, trace, report or picture",
        ),
        Binding("ctrl+q", "quit", "Quit", id="app.quit", show=False, priority=True, tooltip="Quit"),
    ]  # fmt: skip

    typed_commands: ClassVar[tuple[Command, ...]] = ()
    """Those of the field, for the help page."""
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
        "transcript.distribution",
        "transcript.attention",
        "transcript.previous",
        "transcript.unsure",
        "app.help",
        "app.palette",
        "chat.regenerate",
        "chat.tune",
        "chat.chats",
        "chat.duel",
        "app.panel",
        "app.legend",
        "transcript.reasoning",
        "transcript.marks",
        "transcript.colours",
        "chat.answers",
        "chat.fields",
        "app.tree",
        "chat.edit",
        "transcript.copy",
        "app.markdown",
        "app.save",
        "app.quit",
    )
    """The ids of the bindings that the last line names, the most important first."""

    def __init__(self, workspace: Workspace, configuration: Configuration | None = None) -> None:
        """Show a workspace, with the theme and the keys of a configuration.

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
            if configuration.colours is not None:
                workspace.transcript.colouring = Colouring(configuration.colours)
            workspace.transcript.focus_mode = configuration.focus
            self.set_keymap(self._keys)
        self._readable = ReadableColours()

    @classmethod
    def check(cls, configuration: Configuration) -> None:
        """Check the theme, the colours and the keys of a configuration.

        Raises:
            ConfigurationError: there is no such theme, no such colours, no such action, or no such
            key.
        """
        if configuration.theme is not None and configuration.theme not in BUILTIN_THEMES:
            names = ", ".join(BUILTIN_THEMES)
            raise configuration.fault(SCREEN, THEME, f"unknown theme; the themes are {names}")
        if configuration.colours not in (None, *CHOSEN_COLOURINGS):
            reason = f"write one of {', '.join(CHOSEN_COLOURINGS)}"
            raise configuration.fault(SCREEN, COLOURS, reason)
        groups = (cls, WorkspaceApp, Workspace, Transcript, Composer)
        bindings = [binding for group in groups for binding in group.BINDINGS]
        known = {binding.id for binding in bindings if isinstance(binding, Binding) and binding.id}
        for action, keys in configuration.keys.items():
            group = action.partition(".")[0]
            elsewhere = group in APPS and not any(name.startswith(f"{group}.") for name in known)
            if old_names.KEYS.get(action, action) not in known and not elsewhere:
                reason = "unknown action: docs/configuration.md lists them"
                raise configuration.fault(KEYS, action, reason)
            if (key := unknown_key(keys)) is not None:
                reason = f'there is no key {key!r}: write it as "ctrl+j", "f9" or "question_mark"'
                raise configuration.fault(KEYS, action, reason)

    @property
    def _keys(self) -> dict[str, str]:
        """The keys of the configuration, by the ids of today's bindings."""
        keys = self._configuration.keys if self._configuration is not None else {}
        return {old_names.KEYS.get(name, name): key for name, key in keys.items()}

    def remember_screen(self) -> None:
        """Write how the screen looks into the configuration file, whenever the user changes it."""
        for name, key in (("colouring", COLOURS), ("focus_mode", FOCUS)):
            self.watch(self.workspace.transcript, name, partial(self._remember_look, key), False)
        self.theme_changed_signal.subscribe(
            self, lambda theme: self.remember(SCREEN, {THEME: theme.name})
        )

    def _remember_look(self, key: str, value: Value) -> None:
        self.remember(SCREEN, {key: value})

    @property
    def configured_options(self) -> Mapping[str, object]:
        """The options of the configuration file as it is now; none if it cannot be read."""
        path = self._configuration.path if self._configuration is not None else None
        try:
            return Configuration.load(path).options if path is not None and path.exists() else {}
        except ConfigurationError:  # `remember` says so
            return {}

    def remember(self, section: str, values: Mapping[str, Value | None]) -> None:
        """Write values into the configuration file; None removes one."""
        if self._configuration is None:
            return
        try:
            change(self._configuration.path, section, values)
        except ConfigurationError as error:
            self.notify(str(error), severity="error", markup=False)

    def get_default_screen(self) -> MainScreen:
        return MainScreen(id="_default")

    def compose(self) -> ComposeResult:
        yield self.workspace
        yield KeyBar(self.key_order, self.useful_keys)
        yield Static(TOO_SMALL, id="too-small")

    def useful_keys(self) -> dict[str, bool]:
        """Return, by id, whether keys that are not always of use would do something now.

        The last line does not name those that would not.
        """
        pointed = self.workspace.transcript.cursor is not None
        answered = bool(self.workspace.last_steps)
        answer = self.workspace.transcript.answer
        reasoned = answer is not None and answer.has_reasoning
        asking = (
            "transcript.leave",
            "transcript.fork",
            "transcript.previous",
            "transcript.distribution",
            "transcript.attention",
        )
        return {
            "app.escape": pointed,
            "transcript.up": pointed,
            "transcript.left": answered,
            "transcript.next_mark": self.workspace.transcript.has_notable,
            "transcript.marks": answered,
            "transcript.unsure": answered,
            "transcript.colours": answered,
            "transcript.reasoning": reasoned,
            "transcript.copy": answered,
            "app.markdown": answered,
            "app.save": answered,
        } | dict.fromkeys(asking, False)

    @property
    def key_groups(self) -> Mapping[str, Sequence[BindingType]]:
        own = [b for b in type(self).BINDINGS if b not in WorkspaceApp.BINDINGS]
        keys = [*own, *Workspace.BINDINGS, *WorkspaceApp.BINDINGS]
        return {"Anywhere": keys, "In the tokens (Tab, and back)": Transcript.BINDINGS}

    def own_keys(self, bindings: Sequence[BindingType]) -> list[BindingType]:
        """Return bindings with their configured keys."""
        keys = self._keys
        return [
            replace(b, key=keys[b.id], key_display=None)
            if isinstance(b, Binding) and b.id is not None and b.id in keys
            else b
            for b in bindings
        ]

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Return the filters of drawn lines: first the one for colours, then those that dim."""
        return [self._readable, *super().get_line_filters()]

    def copy_to_clipboard(self, text: str) -> None:
        """Copy a text: by pbcopy where there is one, since Terminal.app ignores OSC 52."""
        program = shutil.which("pbcopy")
        if program is None:
            super().copy_to_clipboard(text)
        else:
            subprocess.run([program], input=text, text=True, check=False)

    async def run_action(
        self,
        action: str | ActionParseResult,
        default_namespace: DOMNode | None = None,
        namespaces: Mapping[str, DOMNode] | None = None,
    ) -> bool:
        """Run an action; the page keys of a list without height do nothing (KeyError in
        Textual)."""
        try:
            return await super().run_action(action, default_namespace, namespaces)
        except KeyError:
            if "page_" not in str(action):
                raise
            return False

    def action_command_palette(self) -> None:
        if not isinstance(self.screen, Palette):
            self.push_screen(Palette(id="--command-palette"))

    def pop_screen(self) -> AwaitComplete:
        """Remove the screen on top, unless a screen asks for it that has been removed already.

        A dialog may read two keys before the first one closes it.
        """
        asking = active_message_pump.get(None)
        removed = isinstance(asking, Screen) and asking not in self.screen_stack
        if removed or len(self.screen_stack) == 1:
            return AwaitComplete()
        return super().pop_screen()

    def get_driver_class(self) -> type[Driver]:
        take_any_bytes()
        return super().get_driver_class()

    def panic(self, *renderables: RenderableType) -> None:
        """End with a message, and with the exit code of a crash on whatever thread it was."""
        self.exit(return_code=1)
        super().panic(*renderables)

    def _fatal_error(self) -> None:
        """End after an error nobody expected, with a traceback that leaves out the local variables.

        Textual prints them all: with a long chat that takes minutes, and nothing can end it.
        """
        self.bell()
        self.panic(Traceback(width=None))

    def action_turn_attention(self, layer: int, head: int) -> None:
        self.workspace.turn_attention(layer, head)

    def action_unsure(self) -> None:
        """List the least sure tokens of an answer, and go to the one that is chosen."""
        transcript = self.workspace.transcript
        turn = transcript.turn

        def go(index: int | None) -> None:
            if index is not None:
                transcript.focus()
                transcript.point(index, follow=True, turn=turn)

        if transcript.steps:
            self.push_screen(LeastSure(transcript.steps), go)

    def action_help(self) -> None:
        groups = {heading: self.own_keys(keys) for heading, keys in self.key_groups.items()}
        self.push_screen(HelpScreen(self.workspace.profile, groups, self.typed_commands))

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Return the palette's commands: those of all bindings, and Textual's own."""
        yield from super().get_system_commands(screen)
        nodes = {
            self: [*WorkspaceApp.BINDINGS, *type(self).BINDINGS],
            self.workspace: Workspace.BINDINGS,
            self.workspace.transcript: Transcript.BINDINGS,
        }
        for node, bindings in nodes.items():
            yield from palette_commands(self, node, bindings)
