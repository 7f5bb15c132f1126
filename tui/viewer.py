"""`entropix view`: a recorded trace in the workspace, without a model."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType

from entropix_mlx.chat.conversation import Answer, Conversation, Turn
from entropix_mlx.profiles.profile import Profile
from entropix_mlx.traces.trace import Trace

from .base import WorkspaceApp
from .workspace import Workspace


class ViewerApp(WorkspaceApp):
    """Shows a conversation that cannot go on."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "escape", "Back", tooltip="Leave the tokens", id="app.escape"),
    ]

    def __init__(self, conversation: Conversation, profile: Profile) -> None:
        """Show a conversation, with the thresholds of a profile."""
        super().__init__(Workspace(conversation, profile))

    @classmethod
    def of_trace(cls, trace: Trace) -> ViewerApp:
        """Return an app that shows a trace."""
        header = trace.header
        asked = [message for message in header.messages if message["role"] != "system"]
        question = "\n\n".join(
            m["content"] if len(asked) == 1 else f"{m['role']}: {m['content']}" for m in asked
        )
        turn = Turn(question, [Answer(header.seed, trace.steps)])
        app = cls(Conversation(turns=[turn]), header.profile)
        status = app.workspace.status
        status.sampler, status.model = header.sampler, header.model
        status.context_used = header.prompt_tokens + len(trace.steps)
        status.context_length = header.context_length
        return app

    def on_mount(self) -> None:
        """Let the arrow keys walk over the tokens at once."""
        self.workspace.transcript.focus()

    def on_transcript_fork_wanted(self) -> None:
        """Say that a trace cannot go on."""
        self.notify("a trace has no model to go on with", severity="warning")

    def action_escape(self) -> None:
        """Take the cursor away."""
        self.workspace.transcript.point(None)
