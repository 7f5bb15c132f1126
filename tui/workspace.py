"""The main screen of both apps: the text, the gauges, the inspector, the status line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol, runtime_checkable

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widget import Widget
from textual.widgets import ContentSwitcher, Static

from entropix_mlx.backends.events import StepRead
from entropix_mlx.chat.conversation import Conversation
from entropix_mlx.chat.finding import Match
from entropix_mlx.profiles.profile import Profile
from entropix_mlx.profiles.tree import TREE_SAMPLER
from entropix_mlx.step import Fork, Step

from .composer.status import State, StatusLine
from .containers import Blank, Column
from .gauges.gauges import Gauges
from .gauges.lines import Compact, Strip, Timeline
from .gauges.plane import Plane
from .help_text import COLOURINGS, legend
from .inspector.inspector import Inspector
from .inspector.why import Why
from .transcript.answer import AnswerView, Preview
from .transcript.before import Before
from .transcript.transcript import Transcript

DRAW_SECONDS = 1 / 5
"""The pace of the gauges while an answer is generated: drawing them costs more than a line of text,
since Textual also draws everything between two places that change."""

THREE_PANES = 160
"""From so many columns on, there is room for what is beside the text."""
ROOMY = 14
"""From so many lines on, a short answer leaves room for the timeline."""


@runtime_checkable
class Follower(Protocol):
    """A widget that follows the steps of the last answer.

    The workspace finds these among the widgets that it composes, wherever they are.
    """

    def show_answer(self, steps: Sequence[Step], profile: Profile) -> None:
        """Show another answer, or the same with another profile's thresholds, at once."""

    def add_steps(self, steps: Sequence[Step]) -> None:
        """Add the next steps of the answer; `draw` follows within `DRAW_SECONDS`."""

    def draw(self) -> None:
        """Show everything that was added."""


class Workspace(Blank, Horizontal):
    """Text on the left; gauges on the right, or the inspector of the token under the cursor."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "f2", "panel", "Show gauges", id="app.panel",
            tooltip="Gauges: show or hide the side panel",
        ),
        Binding(
            "ctrl+t", "markdown", "Show Markdown", id="app.markdown",
            tooltip="Markdown: answers as Markdown, or as tokens",
        ),
        Binding(
            "f7", "app.toggle_class('Workspace', '-legend')", "Pin legend", id="app.legend",
            priority=True,
            tooltip="Legend: show or hide what colours, marks and letters mean",
        ),
        Binding(
            "ctrl+b", "focus_mode", "Focus", id="app.focus", priority=True, show=False,
            tooltip="Focus: nothing but the text, uncertainty as an underline",
        ),
        Binding(
            "f9", "app.tree", "Show tree", id="app.tree", priority=True,
            tooltip="Tree: what could have been said, and how it would go on",
        ),
        Binding(
            "pageup", "page(-1)", "Scroll", id="app.pageup", priority=True, show=False,
            key_display="PgUp PgDn", tooltip="Scroll the text",
        ),
        Binding("pagedown", "page(1)", "Scroll", id="app.pagedown", priority=True, show=False),
        Binding(
            "ctrl+end", "newest", "Go to newest", id="app.newest", priority=True, show=False,
            tooltip="Newest: scroll to the end of the text, and follow it",
        ),
        Binding("ctrl+z", "app.suspend_process", "Suspend", id="app.suspend", show=False),
    ]  # fmt: skip

    def __init__(
        self,
        conversation: Conversation,
        profile: Profile,
        *below: Widget,
        beside: Widget | None = None,
    ) -> None:
        """Show a conversation, a profile's thresholds, and some widgets below the status line.

        The widget `beside` the text is on its left, from `THREE_PANES` columns on.
        """
        super().__init__()
        self.conversation = conversation
        self.profile = profile
        self.transcript = Transcript(id="transcript")
        self.gauges = Gauges(profile, id="gauges")
        self.compact = Compact(profile, id="compact")
        self.inspector = Inspector(id="inspector")
        self.plane = Plane(profile, id="plane")
        self.status = StatusLine(id="status")
        self.strip = Strip(profile, id="strip")
        self.timeline = Timeline(profile, id="timeline")
        self.legend = Static(id="legend")
        self.why = Why(profile, id="why")
        self._below = below
        self._beside = beside
        self._followers: list[Follower] = []
        self._followed: AnswerView | None = None  # whose measurements are shown
        self._behind = False  # steps were added since the last `draw`
        self._markdown = False
        self._before: Before | None = None  # while settings are tuned

    def compose(self) -> ComposeResult:
        if self._beside is not None:
            yield self._beside
        with Column(id="left"):
            yield self.transcript
            yield self.timeline
            yield self.strip
            yield self.why
            yield self.compact
            yield self.legend
            yield self.status
            yield from self._below
        with Vertical(id="side"):
            with ContentSwitcher(id="pages", initial="gauges"):
                yield self.gauges
                yield self.inspector
            yield self.plane

    async def on_mount(self) -> None:
        self._followers = [w for w in self.walk_children(Widget) if isinstance(w, Follower)]
        await self.show(self.conversation)
        self.set_interval(DRAW_SECONDS, self._catch_up)
        self.watch(self.status, "state", self._show_state)
        self.watch(self.transcript, "focus_mode", self._show_focus_mode)

    def _show_state(self, state: State) -> None:
        """Show no thresholds while a model loads: they may be other ones."""
        self.set_class(state is State.LOADING, "-loading")

    def _show_focus_mode(self, on: bool) -> None:
        self.screen.set_class(on, "-quiet")
        self.call_after_refresh(self._fit)

    def action_focus_mode(self) -> None:
        self.transcript.focus_mode = not self.transcript.focus_mode
        if self.transcript.focus_mode:
            self.notify("The same key shows the gauges again")

    @property
    def last_steps(self) -> list[Step]:
        turns = self.conversation.turns
        return list(turns[-1].answer.steps) if turns and turns[-1].answers else []

    def asked_anything(self) -> bool:
        """Return whether there is a question, and say so if there is none."""
        if not self.conversation.turns:
            self.notify("nothing was asked yet", severity="warning")
        return bool(self.conversation.turns)

    @property
    def thresholds(self) -> Profile | None:
        """The profile that decides; None where the sampler has no thresholds."""
        return self.profile if self.status.sampler == TREE_SAMPLER else None

    async def show(self, conversation: Conversation) -> None:
        self.conversation = conversation
        self.set_class(not conversation.turns, "-empty")
        seeds = [turn.answer.seed for turn in conversation.turns if turn.answers]
        self.status.seed = self.why.seed = seeds[-1] if seeds else None
        if self.is_attached:  # a model's thread may still report while the app ends
            await self.transcript.show(conversation)
            self.use_profile(self.profile)
            self.screen.refresh_bindings()
            self.call_after_refresh(self._fit)

    def on_resize(self, event: events.Resize) -> None:
        wide = event.size.width >= THREE_PANES and self._beside is not None
        self.set_class(wide, "-three")
        self.call_after_refresh(self._fit)

    def _fit(self) -> None:
        """Give the lower half to the timeline while the text needs no more than the upper one."""
        left = self.query_one("#left")
        others = (w for w in left.children if w not in (self.transcript, self.timeline, self.strip))
        room = left.size.height - sum(w.outer_size.height for w in others if w.display)
        text = self.transcript.text_height
        if self.transcript.welcome is not None and not text:
            self.transcript.welcome.fit(self.transcript.size.height, self.profile)
        self.set_class(bool(text) and room >= ROOMY and 2 * text <= room, "-brief")

    def use_profile(self, profile: Profile) -> None:
        self.profile = profile
        self.why.thresholds = self.thresholds
        decided = self.thresholds is not None
        self.gauges.has_thresholds = self.compact.has_thresholds = decided
        self.legend.update(legend(profile, self.transcript.shown_colouring))
        self.call_after_refresh(self._fit)
        self._show_answer()

    def show_fork(self, fork: Fork) -> None:
        self.gauges.show_fork(fork)
        self.why.show_fork(fork)
        self._behind = True

    def append(self, steps: list[Step]) -> None:
        """Show more steps of the last answer; they also join the conversation."""
        self.conversation.turns[-1].answer.steps += steps
        if self.is_attached:
            self.transcript.append(steps)
            if self._before is not None and self.transcript.last_answer is not None:
                self._before.compare(self.transcript.last_answer)
            if self._followed is self.transcript.last_answer:  # else the cursor is elsewhere
                for follower in self._followers:
                    follower.add_steps(steps)
                self._behind = True

    def _show_answer(self) -> None:
        """Show the measurements of the answer in which the cursor is, or else of the last one."""
        self._followed = self.transcript.answer
        steps = self._followed.steps if self._followed is not None else []
        for follower in self._followers:
            follower.show_answer(steps, self.profile)

    def begin_tuning(self) -> None:
        """Show the last answer twice: as it was decided, and as it is previewed or regenerated."""
        self.add_class("-tuning")  # nothing of the text is covered
        if self.last_steps:
            self._before = Before(self.last_steps)
            self.add_class("-comparing")
            self.mount(self._before, before="#left")

    def end_tuning(self) -> None:
        self.remove_class("-tuning", "-comparing")
        if self._before is not None:
            self._before.remove()
            self._before = None
        if (after := self.transcript.last_answer) is not None:  # it has no mark any more
            after.point(self.transcript.cursor if after is self.transcript.answer else None)

    def preview(self, profile: Profile | None) -> Preview:
        """Colour the last answer's tokens by a profile, None for the one that decided."""
        answer = self.transcript.last_answer
        if answer is None:
            return Preview()
        preview = answer.preview(profile)
        for strip in (self.strip, self.timeline):
            strip.show_strategies(preview.steps, preview.strategies)
        return preview

    def _catch_up(self) -> None:
        if self._behind:
            self._behind = False
            self._draw_followers()

    def _draw_followers(self) -> None:
        self._fit()
        self.transcript.mark_newest()
        for follower in self._followers:
            follower.draw()

    def on_descendant_focus(self) -> None:
        """Name the key that explains a token, which depends on the focus."""
        self.why.name_key(self.transcript.has_focus)

    def on_transcript_cursor_moved(self, event: Transcript.CursorMoved) -> None:
        """Show the token under the cursor, or the gauges if there is none."""
        self.set_class(event.step is not None, "-inspecting")
        self.screen.refresh_bindings()  # other keys do something now
        self.query_one("#pages", ContentSwitcher).current = (
            "gauges" if event.step is None else "inspector"
        )
        if self.transcript.answer is not self._followed:
            self._show_answer()
        self.why.point(event.step)
        self.plane.point(self.transcript.cursor)
        self.strip.point(self.transcript.cursor)
        self.timeline.point(self.transcript.cursor)
        self.transcript.shade(None)
        if event.step is not None:
            self.inspector.show(event.step, self.thresholds)
        else:  # what came while the gauges were hidden
            self._draw_followers()

    def show_read(self, event: StepRead) -> None:
        """Show what was read of a token, if it is still under the cursor."""
        if event.error is not None:
            self.notify(event.error, severity="warning", markup=False)
            return
        self.inspector.show_read(event)
        self.turn_attention(0, 0)

    def turn_attention(self, layer: int, head: int) -> None:
        """Show the attention of another layer or head."""
        self.inspector.turn_attention(layer, head)
        self.transcript.shade(self.inspector.attention, self.inspector.shares)

    def on_transcript_colouring_changed(self) -> None:
        colouring = self.transcript.shown_colouring
        self.legend.update(legend(self.profile, colouring))
        if not self.has_class("-legend"):
            self.notify(COLOURINGS[colouring], timeout=2)

    def on_strip_clicked(self, event: Strip.Clicked) -> None:
        self.transcript.focus()
        self.transcript.point(event.index, follow=True)

    def on_transcript_alternative_moved(self, event: Transcript.AlternativeMoved) -> None:
        self.inspector.move(event.by)
        self.screen.refresh_bindings()  # an alternative may be selected now

    def on_transcript_page_turned(self, event: Transcript.PageTurned) -> None:
        height = self.inspector.size.height
        self.inspector.scroll_relative(y=event.by * height // 2, animate=False)

    def on_answer_view_token_pointed(self, event: AnswerView.TokenPointed) -> None:
        """Put the cursor on a clicked token; follow the mouse while there is a cursor."""
        turn = self.transcript.turn_of(event.answer)
        if turn is None:
            return
        if event.clicked:
            self.transcript.focus()
        pointing = self.transcript.cursor is not None and turn == self.transcript.turn
        if event.clicked or pointing:
            self.transcript.point(event.index, turn=turn)

    def show_place(self, place: Match) -> None:
        if place.step is None:
            self.transcript.point(None)
            self.transcript.show_question(place.turn)
        else:
            self.transcript.point(place.step, follow=True, turn=place.turn)

    def action_panel(self) -> None:
        wide = self.screen.has_class("-wide") or self.screen.has_class("-huge")
        self.toggle_class("-no-panel" if wide else "-panel")

    def action_page(self, by: int) -> None:
        self.transcript.page(by)

    def action_newest(self) -> None:
        self.transcript.go_to_end()

    async def action_markdown(self) -> None:
        self._markdown = not self._markdown
        await self.transcript.show_markdown(self._markdown)
