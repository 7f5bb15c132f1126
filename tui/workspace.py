"""The main screen of both apps: the text, what was measured, the token's page, the status line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol, runtime_checkable

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widget import Widget
from textual.widgets import ContentSwitcher

from entropix_mlx.chat.conversation import Conversation
from entropix_mlx.profiles.profile import Profile
from entropix_mlx.step import Step

from .widgets.answer import AnswerView
from .widgets.compact import Compact
from .widgets.gauges import Gauges
from .widgets.inspector import Inspector
from .widgets.status import StatusLine
from .widgets.transcript import Transcript

DRAW_SECONDS = 1 / 5
"""How often what follows the steps is drawn while an answer comes: that costs more than a line of
text, since Textual also draws what lies between two places that change."""


@runtime_checkable
class Follows(Protocol):
    """A widget that follows the steps of the last answer.

    The workspace finds these among the widgets that it composes, wherever they are.
    """

    def show_answer(self, steps: Sequence[Step], profile: Profile) -> None:
        """Show another answer, or the same with another profile's thresholds, at once."""

    def add_steps(self, steps: Sequence[Step]) -> None:
        """Take the next steps of the answer; `draw` follows within `DRAW_SECONDS`."""

    def draw(self) -> None:
        """Show everything that was added."""


class Workspace(Horizontal):
    """Text on the left; gauges on the right, or the page of the token under the cursor."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "f2", "panel", "Gauges", tooltip="Gauges: show or hide the side panel", id="app.panel"
        ),
        Binding(
            "ctrl+t",
            "markdown",
            "Markdown",
            tooltip="Markdown: answers as Markdown, or as tokens",
            id="app.markdown",
        ),
    ]

    def __init__(self, conversation: Conversation, profile: Profile, *below: Widget) -> None:
        """Show a conversation.

        Args:
            conversation: its last answer is the one whose tokens the cursor can visit.
            profile: whose thresholds are drawn.
            below: widgets below the status line.
        """
        super().__init__()
        self.conversation = conversation
        self.profile = profile
        self.transcript = Transcript(id="transcript")
        self.inspector = Inspector(id="inspector")
        self.status = StatusLine(id="status")
        self._below = below
        self._followers: list[Follows] = []
        self._behind = False  # steps were added since the last `draw`
        self._markdown = False

    def compose(self) -> ComposeResult:
        """Lay out the two columns."""
        with Vertical(id="left"):
            yield self.transcript
            yield Compact(self.profile, id="compact")
            yield self.status
            yield from self._below
        with ContentSwitcher(id="side", initial="gauges"):
            yield Gauges(self.profile, id="gauges")
            yield self.inspector

    async def on_mount(self) -> None:
        """Show the conversation."""
        self._followers = [w for w in self.walk_children(Widget) if isinstance(w, Follows)]
        await self.show(self.conversation)
        self.set_interval(DRAW_SECONDS, self._catch_up)

    @property
    def last_steps(self) -> list[Step]:
        """The steps of the last answer."""
        turns = self.conversation.turns
        return list(turns[-1].answer.steps) if turns and turns[-1].answers else []

    async def show(self, conversation: Conversation) -> None:
        """Show a conversation, and the measurements of its last answer."""
        self.conversation = conversation
        seeds = [turn.answer.seed for turn in conversation.turns if turn.answers]
        self.status.seed = seeds[-1] if seeds else None
        if self.is_attached:  # a model's thread may still report while the app ends
            await self.transcript.show(conversation)
            self.use_profile(self.profile)

    def use_profile(self, profile: Profile) -> None:
        """Draw another profile's thresholds."""
        self.profile = profile
        steps = self.last_steps
        for follower in self._followers:
            follower.show_answer(steps, profile)

    def append(self, steps: list[Step]) -> None:
        """Show more steps of the last answer; they also join the conversation."""
        self.conversation.turns[-1].answer.steps += steps
        if self.is_attached:
            self.transcript.append(steps)
            for follower in self._followers:
                follower.add_steps(steps)
            self._behind = True

    def preview(self, profile: Profile | None) -> tuple[int, int]:
        """Colour the last answer's tokens by a profile, None for what was decided.

        Returns:
            How many tokens' strategy differs from what was decided, and of how many.
        """
        answer = self.transcript.last_answer
        return (0, 0) if answer is None else (answer.reclassify(profile), len(answer.steps))

    def _catch_up(self) -> None:
        """Draw what was added since the last time."""
        if self._behind:
            self._behind = False
            self._draw_followers()

    def _draw_followers(self) -> None:
        for follower in self._followers:
            follower.draw()

    def on_transcript_cursor_moved(self, event: Transcript.CursorMoved) -> None:
        """Show the token under the cursor, or the gauges if there is none."""
        self.set_class(event.step is not None, "-inspecting")
        self.query_one("#side", ContentSwitcher).current = (
            "gauges" if event.step is None else "inspector"
        )
        if event.step is not None:
            self.inspector.show(event.step, self.profile)
        else:  # what came while the gauges were hidden
            self._draw_followers()

    def on_transcript_alternative_moved(self, event: Transcript.AlternativeMoved) -> None:
        """Select another alternative."""
        self.inspector.move(event.by)

    def on_transcript_page_wanted(self, event: Transcript.PageWanted) -> None:
        """Turn the page of the token."""
        height = self.inspector.size.height
        self.inspector.scroll_relative(y=event.by * height // 2, animate=False)

    def on_answer_view_token_pointed(self, event: AnswerView.TokenPointed) -> None:
        """Put the cursor on a clicked token; follow the mouse while there is a cursor."""
        if event.answer is not self.transcript.last_answer:
            return  # only the last answer's tokens can be visited
        if event.clicked:
            self.transcript.focus()
        if event.clicked or self.transcript.cursor is not None:
            self.transcript.point(event.index)

    def on_transcript_copy_wanted(self) -> None:
        """Copy the last answer."""
        answer = self.transcript.last_answer
        if answer is not None:
            self.app.copy_to_clipboard(answer.text)
            self.notify("copied")

    def action_panel(self) -> None:
        """Show or hide the side panel."""
        shown_at_first = self.screen.has_class("-wide")
        self.toggle_class("-no-panel" if shown_at_first else "-panel")

    async def action_markdown(self) -> None:
        """Show answers as Markdown, or as tokens again."""
        self._markdown = not self._markdown
        await self.transcript.show_markdown(self._markdown)
