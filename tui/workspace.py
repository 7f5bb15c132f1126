"""The main screen of both apps: the text, the gauges, the inspector, the status line."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.reactive import reactive
from textual.widget import Widget
from textual.widgets import ContentSwitcher

from entropix_mlx.chat.conversation import Conversation
from entropix_mlx.chat.events import StepRead
from entropix_mlx.chat.finding import Match
from entropix_mlx.profiles.profile import Profile
from entropix_mlx.profiles.tree import TREE_SAMPLER
from entropix_mlx.step import Fork, Step

from .answer import Answer
from .composer.status import State, StatusLine
from .gauges.gauges import Bars, Counts
from .gauges.plane import Plane
from .inspector.inspector import Inspector
from .inspector.why import Why
from .keys import bind
from .transcript.answer import AnswerView
from .transcript.transcript import Transcript

DRAW_SECONDS = 1 / 5
"""The pace of the gauges while an answer is generated: drawing them costs more than a line of text,
since Textual also draws everything between two places that change."""


class Workspace(Horizontal):
    """Text on the left; gauges on the right, or the inspector of the token under the cursor."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("app.panel", "ctrl+g,f2", "panel", "Gauges", "show or hide the panel", footer=True),
        bind("app.pageup", "pageup", "page(-1)", priority=True),
        bind("app.pagedown", "pagedown", "page(1)", priority=True),
        bind("app.newest", "ctrl+end", "newest", priority=True),
        bind("app.suspend", "ctrl+z", "app.suspend_process", "Suspend",
             "to the shell; fg comes back"),
    ]  # fmt: skip

    answer: reactive[Answer] = reactive(Answer, always_update=True, repaint=False)
    """The answer whose measurements are shown."""

    def __init__(self, conversation: Conversation, profile: Profile, *below: Widget) -> None:
        """Show a conversation, a profile's thresholds, and some widgets below the status line."""
        super().__init__()
        self.conversation = conversation
        self.profile = profile
        self.transcript = Transcript(id="transcript")
        self.gauges = VerticalScroll(id="gauges", can_focus=False)
        self.inspector = Inspector(id="inspector")
        self.plane = Plane(id="plane")
        self.status = StatusLine(id="status")
        self.why = Why(id="why")
        self._below = below
        self._followed: AnswerView | None = None  # the one that `answer` is
        self._behind = False  # steps were added since the answer was drawn

    def compose(self) -> ComposeResult:
        for widget in (self.why, self.status, self.plane):
            widget.data_bind(Workspace.answer)
        with Vertical(id="left"):
            yield self.transcript
            yield self.why
            yield self.status
            yield from self._below
        with Vertical(id="side"):
            with ContentSwitcher(id="pages", initial="gauges"):
                with self.gauges:
                    yield Bars(id="bars").data_bind(Workspace.answer)
                    yield Counts(id="counts").data_bind(Workspace.answer)
                yield self.inspector
            yield self.plane

    async def on_mount(self) -> None:
        await self.show(self.conversation)
        self.set_interval(DRAW_SECONDS, self._catch_up)
        self.watch(self.status, "state", self._show_state)

    def _show_state(self, state: State) -> None:
        """Show no thresholds while a model loads: they may be other ones."""
        self.set_class(state is State.LOADING, "-loading")

    @property
    def last_steps(self) -> list[Step]:
        turns = self.conversation.turns
        return list(turns[-1].answer.steps) if turns and turns[-1].answers else []

    def asked_anything(self) -> bool:
        """Return whether there is a question, and say so if there is none."""
        if not self.conversation.turns:
            self.notify("nothing was asked yet", severity="warning")
        return bool(self.conversation.turns)

    async def show(self, conversation: Conversation) -> None:
        self.conversation = conversation
        self.set_class(not conversation.turns, "-empty")
        if self.is_attached:  # a model's thread may still report while the app ends
            await self.transcript.show(conversation)
            self.use_profile(self.profile)
            self.screen.refresh_bindings()

    def use_profile(self, profile: Profile) -> None:
        self.profile = profile
        if self.transcript.welcome is not None:
            self.transcript.welcome.show(profile)
        self._show_answer()

    def show_fork(self, fork: Fork) -> None:
        self.answer.fork = fork
        self._behind = True

    def append(self, steps: list[Step]) -> None:
        """Show more steps of the last answer; they also join the conversation."""
        self.conversation.turns[-1].answer.steps += steps
        self.status.context_used += len(steps)
        if self.is_attached:
            self.transcript.append(steps)
            if self._followed is self.transcript.last_answer:  # else the cursor is elsewhere
                self.answer.add(steps)
                self._behind = True

    def _show_answer(self) -> None:
        """Show the measurements of the answer in which the cursor is, or else of the last one."""
        self._followed, transcript = self.transcript.answer, self.transcript
        decides = self.status.sampler == TREE_SAMPLER
        answer = Answer(transcript.steps, self.profile, transcript.seed, decides)
        answer.cursor = transcript.cursor
        self.answer = answer

    def preview(self, profile: Profile | None) -> Answer:
        """Colour the last answer's tokens by a profile, None for the one that decided."""
        view = self.transcript.last_answer
        answer = Answer(view.steps if view else (), self.profile)
        if profile is not None:
            answer = answer.decided_by(profile)
        if view is not None:
            view.preview(None if profile is None else answer.strategies)
        return answer

    def _catch_up(self) -> None:
        if self._behind:
            self._behind = False
            self.transcript.mark_newest()
            self.mutate_reactive(Workspace.answer)

    def on_descendant_focus(self) -> None:
        self.why.inside = self.transcript.has_focus

    def on_transcript_cursor_moved(self, event: Transcript.CursorMoved) -> None:
        if self.has_class("-inspecting") is not (event.step is not None):
            self.toggle_class("-inspecting")
            self.screen.refresh_bindings()  # other keys do something now
        page = "gauges" if event.step is None else "inspector"
        self.query_one("#pages", ContentSwitcher).current = page
        self.transcript.shade(None)
        if self.transcript.answer is not self._followed:
            self._show_answer()
        else:
            self.answer.cursor = self.transcript.cursor
            self.mutate_reactive(Workspace.answer)
        if event.step is not None:
            self.inspector.show(event.step, self.answer.thresholds)

    def show_read(self, event: StepRead) -> None:
        if event.error is not None:
            self.notify(event.error, severity="warning", markup=False)
            return
        self.inspector.show_read(event)
        self.transcript.shade(self.inspector.attention, self.inspector.shares)

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
        self.toggle_class("-panel" if self.screen.has_class("-small") else "-no-panel")

    def action_page(self, by: int) -> None:
        self.transcript.action_page(by)

    def action_newest(self) -> None:
        self.transcript.go_to_end()
