"""What both apps share because Textual asks the app itself for it: style sheet, clipboard, help."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from textual.app import App, ComposeResult, SystemCommand
from textual.binding import Binding, BindingType
from textual.filter import LineFilter
from textual.screen import Screen
from textual.widgets import Footer

from .contrast import ReadableColours
from .keys import palette_commands
from .screens.dialogs import HelpScreen
from .widgets.transcript import Transcript
from .workspace import Workspace


class WorkspaceApp(App[None]):
    """An app whose main screen is a workspace and a footer.

    It handles no messages, since Textual would call its handlers beside those of a subclass.
    """

    CSS_PATH = "entropix.tcss"
    TITLE = "entropix"
    HORIZONTAL_BREAKPOINTS = [  # noqa: RUF012 - as Textual types it
        (0, "-slim"),  # the panel lies below the text
        (80, "-narrow"),  # beside it, when it is asked for
        (100, "-wide"),
    ]
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f1", "help", "Help", tooltip="Help: keys, colours and marks", id="app.help"),
        Binding(
            "ctrl+p",
            "command_palette",
            show=False,
            priority=True,
            tooltip="All commands, themes",
            id="app.palette",
        ),
        Binding("ctrl+q", "quit", "Quit", show=False, priority=True, tooltip="Quit", id="app.quit"),
    ]

    typed_commands: ClassVar[Sequence[str]] = ()
    """What can be typed in a field, for the help page."""

    def __init__(self, workspace: Workspace) -> None:
        """Show a workspace."""
        super().__init__()
        self.workspace = workspace
        self._readable = ReadableColours()

    def compose(self) -> ComposeResult:
        """Lay out the workspace above the footer."""
        yield self.workspace
        yield Footer(show_command_palette=False, compact=True)

    @property
    def key_groups(self) -> Mapping[str, Sequence[BindingType]]:
        """The bindings of the help page, under their headings."""
        own = [b for b in type(self).BINDINGS if b not in WorkspaceApp.BINDINGS]
        keys = [*own, *Workspace.BINDINGS, *WorkspaceApp.BINDINGS]
        return {"Anywhere": keys, "In the tokens (Tab, and back)": Transcript.BINDINGS}

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
        self.push_screen(HelpScreen(self.key_groups, self.typed_commands))

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Return the palette's commands: all that keys do, and Textual's own."""
        yield from super().get_system_commands(screen)
        workspace = self.workspace
        yield from palette_commands(self, self, WorkspaceApp.BINDINGS)
        if type(self).BINDINGS is not WorkspaceApp.BINDINGS:
            yield from palette_commands(self, self, type(self).BINDINGS)
        yield from palette_commands(self, workspace, workspace.BINDINGS)
        yield from palette_commands(self, workspace.transcript, Transcript.BINDINGS)
