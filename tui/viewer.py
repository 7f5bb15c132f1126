"""`entropix view`: a recorded trace in the workspace, without a model."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.timer import Timer

from entropix_mlx.chat.conversation import Conversation, Reply, Turn
from entropix_mlx.configuration import Configuration
from entropix_mlx.profiles.profile import Profile
from entropix_mlx.traces.trace import Trace

from .base import WorkspaceApp
from .replay import Replay
from .terminal import end_with_terminal
from .workspace import Workspace

FRAME_SECONDS = 1 / 15
"""How often steps come while an answer is played."""


class ViewerApp(WorkspaceApp):
    """Shows a conversation that cannot go on."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "escape", "escape", "Back", tooltip="Leave the tokens; end playing", id="app.escape"
        ),
        Binding("space", "play", "Play", tooltip="Play: as it was recorded; pause", id="view.play"),
        Binding(
            "plus,equals_sign",
            "speed(1)",
            "Speed",
            key_display="+ -",
            tooltip="Play faster or slower",
            id="view.faster",
        ),
        Binding("minus", "speed(-1)", "Slower", show=False, id="view.slower"),
    ]

    def __init__(
        self,
        conversation: Conversation,
        profile: Profile,
        configuration: Configuration | None = None,
    ) -> None:
        """Show a conversation, with the thresholds of a profile."""
        super().__init__(Workspace(conversation, profile), configuration)
        self.workspace.inspector.goes_on = False
        self._whole = conversation
        self._replay: Replay | None = None
        self._timer: Timer | None = None
        self._paused = False

    @classmethod
    def of_trace(cls, trace: Trace, configuration: Configuration | None = None) -> ViewerApp:
        """Return an app that shows a trace."""
        header = trace.header
        asked = [message for message in header.messages if message["role"] != "system"]
        question = "\n\n".join(
            m["content"] if len(asked) == 1 else f"{m['role']}: {m['content']}" for m in asked
        )
        turn = Turn(question, [Reply(header.seed, trace.steps)])
        app = cls(Conversation(turns=[turn]), header.profile, configuration)
        status = app.workspace.status
        status.sampler, status.model = header.sampler, header.model
        status.context_used = header.prompt_tokens + len(trace.steps)
        status.context_length = header.context_length
        return app

    def useful_keys(self) -> dict[str, bool]:
        """Return which of the keys that do not always help would do something now."""
        pointed = self.workspace.transcript.cursor is not None
        playing = self._replay is not None
        return super().useful_keys() | {
            "view.play": bool(self.workspace.last_steps),
            "view.faster": playing,
            "app.escape": playing or pointed,
        }

    def on_mount(self) -> None:
        """Let the arrow keys walk over the tokens at once."""
        end_with_terminal(self)
        self.workspace.transcript.focus()
        self.remember_theme()

    def on_transcript_fork_wanted(self) -> None:
        """Say that a trace cannot go on."""
        self.notify("a trace has no model to go on with", severity="warning")

    async def action_escape(self) -> None:
        """End playing, or take the cursor away."""
        if self._replay is not None:
            await self._end_replay()
        self.workspace.transcript.point(None)

    async def action_play(self) -> None:
        """Play the last answer from its beginning, or from the cursor; or pause, and go on."""
        if self._timer is None:
            await self._begin_replay()
        else:
            self._paused = not self._paused
        self._tell_speed()

    def action_speed(self, by: int) -> None:
        """Play faster or slower."""
        if self._replay is not None:
            self._replay.change_speed(by)
            self._tell_speed()

    async def _begin_replay(self) -> None:
        turns = self._whole.turns
        steps = turns[-1].answer.steps if turns and turns[-1].answers else []
        if not steps:
            return
        start = self.workspace.transcript.cursor or 0
        self._replay = Replay(steps, start)
        answer = replace(turns[-1].answer, steps=steps[:start])
        played = replace(turns[-1], answers=[answer], selected=0)
        await self.workspace.show(replace(self._whole, turns=[*turns[:-1], played]))
        self._timer = self.set_interval(FRAME_SECONDS, self._play_on)

    async def _play_on(self) -> None:
        if self._replay is None or self._paused:
            return
        steps = self._replay.advance(FRAME_SECONDS)
        if steps:
            self.workspace.append(steps)
        if self._replay.ended:
            await self._end_replay()

    async def _end_replay(self) -> None:
        """Show the whole answer again."""
        if self._timer is not None:
            self._timer.stop()
        self._replay, self._timer, self._paused = None, None, False
        self._tell_speed()
        await self.workspace.show(self._whole)

    def _tell_speed(self) -> None:
        """Say in the status line whether, and how fast, the answer is played."""
        told = ""
        if self._replay is not None:
            told = f"{'paused' if self._paused else 'playing'} ×{self._replay.speed:g}"
        self.workspace.status.progress = told
