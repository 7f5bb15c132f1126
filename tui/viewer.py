"""The part of the UI that needs no model: text, gauges, inspector. It replays a trace."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from typing import ClassVar

from textual.app import App, ComposeResult, SystemCommand
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import ContentSwitcher, Footer, Static

from entropix_mlx.chat.conversation import Answer, Conversation, Turn
from entropix_mlx.profiles.profile import Profile
from entropix_mlx.step import Step
from entropix_mlx.summary import Summary
from entropix_mlx.traces.trace import Trace

from .messages import TokenPointed
from .screens.dialogs import HelpScreen
from .widgets.gauges import Gauges, draw_compact
from .widgets.inspector import Inspector
from .widgets.transcript import Transcript

GAUGE_SECONDS = 1 / 5
"""The gauges and the status line follow the text at this pace: to draw them costs more than a line
of text, and what lies between two places that change is drawn, too."""


class ViewerApp(App[None]):
    """Shows a conversation, and all about its tokens."""

    CSS_PATH = "entropix.tcss"
    TITLE = "entropix"
    HORIZONTAL_BREAKPOINTS = [  # noqa: RUF012 - as Textual types it
        (0, "-narrow"),
        (100, "-wide"),
    ]
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f1", "help", "Help", id="app.help"),
        Binding("f2", "panel", "Gauges", id="app.panel"),
        Binding("ctrl+t", "markdown", "Markdown", id="app.markdown"),
        Binding("escape", "escape", "Stop", id="app.escape"),
        Binding("ctrl+q", "quit", "Quit", show=False, id="app.quit"),
    ]

    def __init__(self, conversation: Conversation, profile: Profile, labels: Iterable[str]) -> None:
        """Show a conversation.

        Args:
            conversation: its last answer is the one that can be walked over.
            profile: whose thresholds are drawn.
            labels: what the status line says of the model, the sampler and the seed.
        """
        super().__init__()
        self.conversation = conversation
        self.profile = profile
        self.labels = list(labels)
        self.context = ""
        self.activity = ""
        self._summary = Summary()
        self._markdown = False
        self._newest: Step | None = None  # not shown by the gauges yet

    @classmethod
    def of_trace(cls, trace: Trace) -> ViewerApp:
        """Return an app that shows a trace."""
        header = trace.header
        asked = [message for message in header.messages if message["role"] != "system"]
        question = "\n\n".join(
            m["content"] if len(asked) == 1 else f"{m['role']}: {m['content']}" for m in asked
        )
        turn = Turn(question, [Answer(header.seed, trace.steps)])
        labels = f"seed {header.seed}", header.sampler, header.profile.name, header.model
        app = cls(Conversation(turns=[turn]), header.profile, labels)
        used = header.prompt_tokens + len(trace.steps)
        app.context = f"context {used}/{header.context_length}"
        return app

    def compose(self) -> ComposeResult:
        """Lay out text at the left and gauges at the right."""
        with Horizontal(id="main"):
            with Vertical(id="left"):
                yield Transcript(id="transcript")
                yield Static(id="compact")
                yield Static(id="status")
                yield from self.compose_bottom()
            with ContentSwitcher(id="side", initial="gauges"):
                yield Gauges(self.profile, id="gauges")
                yield Inspector(id="inspector")
        yield Footer(show_command_palette=False, compact=True)

    def compose_bottom(self) -> Iterable[Widget]:
        """Return what stands below the text; nothing here."""
        return ()

    async def on_mount(self) -> None:
        """Show the conversation."""
        await self.show_conversation(self.conversation)
        self.set_interval(GAUGE_SECONDS, self._follow)
        self.begin()

    # Textual calls a message's handler in every class of an app, so what a chat does differently is
    # in methods of other names.

    def begin(self) -> None:
        """Do what is to be done once everything is on screen."""
        self.transcript.focus()

    def fork(self) -> None:
        """Say that a trace cannot go on."""
        self.notify("a trace has no model to go on with", severity="warning")

    @property
    def transcript(self) -> Transcript:
        """The text."""
        return self.query_one("#transcript", Transcript)

    @property
    def inspector(self) -> Inspector:
        """The token's page."""
        return self.query_one("#inspector", Inspector)

    @property
    def showing(self) -> bool:
        """Whether there is a screen: a model's thread may speak on while the app ends."""
        return self.is_running and self.query_one_optional("#gauges") is not None

    async def show_conversation(self, conversation: Conversation) -> None:
        """Show a conversation, and the gauges of its last answer."""
        self.conversation = conversation
        if not self.showing:
            return
        await self.transcript.show(conversation)
        steps = self._last_steps()
        self.query_one("#gauges", Gauges).show(steps, self.profile)
        self._summary = Summary.of(steps)
        self.show_status(steps[-1] if steps else None)

    def show_steps(self, steps: list[Step]) -> None:
        """Show more steps of the last answer; the conversation has them, too."""
        self.conversation.turns[-1].answer.steps += steps
        if not self.showing:
            return
        self.transcript.append(steps)
        self.query_one("#gauges", Gauges).append(steps)
        for step in steps:
            self._summary.add(step)
        self._newest = steps[-1]

    def _follow(self) -> None:
        """Let the gauges and the status line catch up with the text."""
        if self._newest is not None and self.showing:
            self.query_one("#gauges", Gauges).draw()
            self.show_status(self._newest)
            self._newest = None

    def show_status(self, step: Step | None = None) -> None:
        """Update the line about everything, and the gauges of narrow screens."""
        if not self.showing:
            return
        compact = self.query_one("#compact", Static)
        if step and compact.display:
            drawn = draw_compact(step, self.profile, compact.size.width or 80)
            compact.update(drawn, layout=False)
        speed = self._summary.tokens_per_second
        parts = [self.activity, f"{speed:.1f} tok/s" if speed else "", self.context, *self.labels]
        line = Content(" · ".join(filter(None, parts)))
        self.query_one("#status", Static).update(line, layout=False)

    def on_transcript_cursor_moved(self, event: Transcript.CursorMoved) -> None:
        """Show the token under the cursor, or the gauges if there is none."""
        self.screen.set_class(event.step is not None, "-inspecting")
        side = self.query_one("#side", ContentSwitcher)
        side.current = "gauges" if event.step is None else "inspector"
        if event.step is not None:
            self.inspector.show(event.step, self.profile)
        else:
            self.query_one("#gauges", Gauges).draw()

    def on_transcript_alternative_moved(self, event: Transcript.AlternativeMoved) -> None:
        """Select another alternative."""
        self.inspector.move(event.by)

    def on_transcript_page_wanted(self, event: Transcript.PageWanted) -> None:
        """Turn the page of the token."""
        height = self.inspector.size.height
        self.inspector.scroll_relative(y=event.by * height // 2, animate=False)

    def on_token_pointed(self, event: TokenPointed) -> None:
        """A click puts the cursor on a token; pointing moves a cursor that is there."""
        if event.answer is not self.transcript.last_answer:
            return  # the cursor walks over the last answer only
        if event.clicked:
            self.transcript.focus()
        if event.clicked or self.transcript.cursor is not None:
            self.transcript.point(event.index)

    def on_transcript_copy_wanted(self) -> None:
        """Copy the last answer."""
        answer = self.transcript.last_answer
        if answer is not None:
            self.copy_to_clipboard(answer.text)
            self.notify("copied")

    def on_transcript_fork_wanted(self) -> None:
        """Go on with another token."""
        self.fork()

    def copy_to_clipboard(self, text: str) -> None:
        """Copy a text: by pbcopy where there is one, since Terminal.app ignores OSC 52."""
        program = shutil.which("pbcopy")
        if program is None:
            super().copy_to_clipboard(text)
        else:
            subprocess.run([program], input=text, text=True, check=False)

    def action_help(self) -> None:
        """Show the keys and the legend."""
        self.push_screen(HelpScreen())

    def action_panel(self) -> None:
        """Show or hide the side panel."""
        narrow = self.screen.has_class("-narrow")  # where it is hidden at first
        self.screen.toggle_class("-panel" if narrow else "-no-panel")

    async def action_markdown(self) -> None:
        """Show answers as Markdown, or as tokens again."""
        self._markdown = not self._markdown
        await self.transcript.show_markdown(self._markdown)

    def action_escape(self) -> None:
        """Take the cursor away."""
        self.transcript.point(None)

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Return the palette's commands: all that keys do, and Textual's own."""
        yield from super().get_system_commands(screen)
        yield SystemCommand("Help", "Keys, colours and marks", self.action_help)
        yield SystemCommand("Gauges", "Show or hide the side panel", self.action_panel)
        yield SystemCommand("Markdown", "Answers as Markdown, or as tokens", self.action_markdown)
        yield SystemCommand("Glyphs", "A glyph before each token", self.transcript.action_marks)
        yield SystemCommand("Copy answer", "The last answer", self.on_transcript_copy_wanted)

    def _last_steps(self) -> list[Step]:
        turns = self.conversation.turns
        return list(turns[-1].answer.steps) if turns and turns[-1].answers else []
