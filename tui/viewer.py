"""`entropix view`: a recorded trace in the workspace, without a model, and its replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from textual.binding import BindingType
from textual.timer import Timer

from entropix_mlx.chat.conversation import Conversation, Reply, Turn
from entropix_mlx.configuration import Configuration
from entropix_mlx.profiles.profile import Profile
from entropix_mlx.step import Step
from entropix_mlx.traces.trace import Trace

from .base import WorkspaceApp
from .chat_files import Exports
from .keys import bind
from .terminal import follow_terminal
from .workspace import Workspace

FRAME_SECONDS = 1 / 15
"""The pace of a replay."""
SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Speeds of a replay, as multiples of the recorded one."""


class ViewerApp(WorkspaceApp):
    """Shows a conversation that has no model to continue."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("app.escape", "escape", "escape", "Back", footer=True),
        bind("view.play", "space", "play", "Play", "at recorded pace; pause", footer=True),
        bind("view.faster", "plus,equals_sign", "speed(1)", "Speed", shown="+ -", footer=True),
        bind("view.slower", "minus", "speed(-1)"),
    ]  # fmt: skip

    def __init__(
        self,
        conversation: Conversation,
        profile: Profile,
        configuration: Configuration | None = None,
    ) -> None:
        super().__init__(Workspace(conversation, profile), configuration)
        self.workspace.inspector.has_model = False
        self.files = Exports(self, self.workspace)
        self._whole = conversation
        self._replay: Replay | None = None
        self._timer: Timer | None = None
        self._paused = False

    @classmethod
    def of_trace(cls, trace: Trace, configuration: Configuration | None = None) -> ViewerApp:
        header = trace.header
        messages = [message for message in header.messages if message["role"] != "system"]
        question = "\n\n".join(
            m["content"] if len(messages) == 1 else f"{m['role']}: {m['content']}" for m in messages
        )
        turn = Turn(question, [Reply(header.seed, trace.steps)])
        app = cls(Conversation(turns=[turn]), header.profile, configuration)
        app.files.header = header
        status = app.workspace.status
        status.sampler, status.model = header.sampler, header.model
        status.context_used = header.prompt_tokens + len(trace.steps)
        status.context_length = header.context_length
        return app

    def is_useful(self, action: str) -> bool:
        match action:
            case "escape":
                return self._replay is not None or super().is_useful(action)
            case "play":
                return bool(self.workspace.last_steps)
            case "speed":
                return self._replay is not None
        return super().is_useful(action)

    def on_mount(self) -> None:
        """Focus the text, so that the arrow keys move between tokens at once."""
        follow_terminal(self)
        self.workspace.transcript.focus()

    async def action_save(self) -> None:
        await self.files.ask_where_to_save()

    async def action_escape(self) -> None:
        if self._replay is not None:
            await self._end_replay()
        self.workspace.transcript.point(None)

    async def action_play(self) -> None:
        """Play the last answer from its beginning, or from the cursor; or pause, or go on."""
        if self._timer is None:
            await self._begin_replay()
        else:
            self._paused = not self._paused
        self._show_speed()

    def action_speed(self, by: int) -> None:
        if self._replay is not None:
            self._replay.change_speed(by)
            self._show_speed()

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
        self.workspace.status.context_used -= len(steps) - start  # `add_steps` counts the others
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
        if self._timer is not None:
            self._timer.stop()
        if self._replay is not None:
            self.workspace.status.context_used += self._replay.left
        self._replay, self._timer, self._paused = None, None, False
        self._show_speed()
        await self.workspace.show(self._whole)

    def _show_speed(self) -> None:
        state = ""
        if self._replay is not None:
            state = f"{'paused' if self._paused else 'playing'} ×{self._replay.speed:g}"
        self.workspace.status.progress = state


class Replay:
    """An answer while it is played, without a clock of its own."""

    def __init__(self, steps: Sequence[Step], start: int = 0) -> None:
        """Start at the step with this index, which is played at once."""
        self._steps = steps
        self._speed = SPEEDS.index(1.0)
        self.played = start
        """The number of steps that have been played."""
        self._now = steps[start].time if start < len(steps) else 0.0

    @property
    def speed(self) -> float:
        return SPEEDS[self._speed]

    @property
    def ended(self) -> bool:
        return self.played >= len(self._steps)

    @property
    def left(self) -> int:
        return len(self._steps) - self.played

    def change_speed(self, by: int) -> None:
        self._speed = min(max(self._speed + by, 0), len(SPEEDS) - 1)

    def advance(self, seconds: float) -> list[Step]:
        """Advance by some seconds and return the steps within them."""
        first = self.played
        self._now += seconds * self.speed
        while not self.ended and self._steps[self.played].time <= self._now:
            self.played += 1
        return list(self._steps[first : self.played])
