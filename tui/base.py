"""The part that both apps share: style sheet, configuration, clipboard, help, and two guards."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from rich.console import RenderableType
from textual.actions import ActionParseResult
from textual.app import App, ComposeResult, SystemCommand
from textual.binding import Binding, BindingType
from textual.dom import DOMNode
from textual.driver import Driver
from textual.filter import LineFilter
from textual.screen import ModalScreen, Screen
from textual.theme import BUILTIN_THEMES
from textual.widgets import Footer, Static

from entropix_mlx.configuration import COLOURS, KEYS, SCREEN, THEME, Configuration

from .composer.composer import Composer
from .keys import Palette, bind, palette_commands, spelled
from .screens.dialogs import Sized
from .screens.help import HelpScreen
from .styles import Colouring, ReadableColours
from .terminal import take_any_bytes
from .transcript.transcript import Transcript
from .workspace import Workspace

TOO_SMALL = "This terminal is too small: enlarge it to 24 columns and 6 lines at least."
APPS = ("chat", "view")
"""Groups of keys that only one of the apps has; a configuration may name both."""
DIALOGS = frozenset({"save", "chats", "models", "find", "system_prompt", "answers", "edit"})
"""Actions that are off while a dialog is open; their keys have priority, or keys that are typed at
once would overtake them."""


class MainScreen(Sized[None]):
    """The screen below all others."""


class WorkspaceApp(App[None]):
    """An app whose main screen is a workspace and a footer.

    It handles no messages, since Textual would call its handlers beside those of a subclass.
    """

    CSS_PATH = Path(__file__).with_name("entropix.tcss")
    TITLE = "entropix"
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("app.help", "question_mark,f1", "help", "Help", "keys, H, V, strategies, marks",
             footer=True),
        bind("app.palette", "ctrl+p", "command_palette", "Commands", priority=True),
        bind("app.slash", "slash", "command_palette"),
        bind("app.save", "ctrl+s", "save", "Save", "chat, Markdown, trace or report",
             footer=True, priority=True),
        bind("app.quit", "ctrl+q", "quit", "Quit", "leave the program", priority=True),
    ]  # fmt: skip

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
            self.set_keymap(dict(configuration.keys))
        self._readable = ReadableColours()

    @classmethod
    def check(cls, configuration: Configuration) -> None:
        """Check the theme, the colours and the actions of a configuration.

        Raises:
            ConfigurationError: there is no such theme, no such colours, or no such action.
        """
        if configuration.theme is not None and configuration.theme not in BUILTIN_THEMES:
            names = ", ".join(BUILTIN_THEMES)
            raise configuration.fault(SCREEN, THEME, f"unknown theme; the themes are {names}")
        if configuration.colours not in (None, *Colouring):
            reason = f"write one of {', '.join(Colouring)}"
            raise configuration.fault(SCREEN, COLOURS, reason)
        groups = (cls, WorkspaceApp, Workspace, Transcript, Composer)
        bindings = [binding for group in groups for binding in group.BINDINGS]
        known = {binding.id for binding in bindings if isinstance(binding, Binding) and binding.id}
        for action in configuration.keys:
            group = action.partition(".")[0]
            elsewhere = group in APPS and not any(name.startswith(f"{group}.") for name in known)
            if action not in known and not elsewhere:
                reason = "unknown action: docs/chat.md lists them"
                raise configuration.fault(KEYS, action, reason)

    def get_default_screen(self) -> MainScreen:
        return MainScreen(id="_default")

    def compose(self) -> ComposeResult:
        yield self.workspace
        yield Footer(compact=True)
        yield Static(TOO_SMALL, id="too-small")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Switch keys off that would do nothing now; the last line does not name them."""
        if action in DIALOGS and isinstance(self.screen, ModalScreen):
            return False
        return self.is_useful(action)

    def is_useful(self, action: str) -> bool:
        match action:
            case "escape":
                return self.workspace.transcript.cursor is not None
            case "save":
                return bool(self.workspace.last_steps)
            case "fork" | "distribution" | "attention" | "answers" | "sibling" | "edit":
                return False  # a trace has no model
            case "focus":
                return False  # nor a field
        return True

    @property
    def key_groups(self) -> Mapping[str, Sequence[BindingType]]:
        own = [b for b in type(self).BINDINGS if b not in WorkspaceApp.BINDINGS]
        field = Composer.BINDINGS if self.workspace.query(Composer) else []
        keys = [*field, *own, *Workspace.BINDINGS, *WorkspaceApp.BINDINGS]
        return {"Anywhere": keys, "In the tokens (Tab, and back)": Transcript.BINDINGS}

    def own_keys(self, bindings: Sequence[BindingType]) -> list[BindingType]:
        keys = self._configuration.keys if self._configuration is not None else {}
        return [
            b.with_key(keys[b.id], spelled(keys[b.id].partition(",")[0]))
            if isinstance(b, Binding) and b.id is not None and b.id in keys
            else b
            for b in bindings
        ]

    def get_line_filters(self) -> Sequence[LineFilter]:
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
        """Run an action, but for the page keys of a list without height (KeyError in Textual)."""
        if self.return_code is not None:  # the app is left, and its screens lose their widgets
            return False
        try:
            return await super().run_action(action, default_namespace, namespaces)
        except KeyError:
            if "page_" not in str(action):
                raise
            return False

    def action_suspend_process(self) -> None:
        """Stop, as programs do on Ctrl+Z; `fg` in the shell goes on."""
        if self.is_headless:
            return
        with self.suspend():
            os.kill(os.getpid(), signal.SIGSTOP)

    def action_command_palette(self) -> None:
        if not isinstance(self.screen, Palette):
            self.push_screen(Palette(id="--command-palette"))

    def get_driver_class(self) -> type[Driver]:
        take_any_bytes()
        return super().get_driver_class()

    def panic(self, *renderables: RenderableType) -> None:
        """End with a message, and with the exit code of a crash on whatever thread it was."""
        self.exit(return_code=1)
        super().panic(*renderables)

    def action_alternative(self, by: int) -> None:
        """Move over the alternatives, or scroll while there is no cursor."""
        if self.workspace.transcript.cursor is None:
            self.workspace.transcript.scroll_relative(y=by, animate=False)
        else:
            self.workspace.inspector.move(by)

    def action_scroll_panel(self, by: int) -> None:
        inspector = self.workspace.inspector
        inspector.scroll_relative(y=by * inspector.size.height // 2, animate=False)

    def action_help(self) -> None:
        groups = [(heading, self.own_keys(keys)) for heading, keys in self.key_groups.items()]
        if self.workspace.transcript.has_focus:  # first the keys that work here
            groups.reverse()
        self.push_screen(HelpScreen(self.workspace.profile, dict(groups)))

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        nodes = {
            self: [*WorkspaceApp.BINDINGS, *type(self).BINDINGS],
            self.workspace: Workspace.BINDINGS,
            self.workspace.transcript: Transcript.BINDINGS,
        }
        for node, bindings in nodes.items():
            yield from palette_commands(self, node, bindings)
