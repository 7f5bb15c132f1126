"""Every key in every state of the chat, without a model: whatever is pressed, nothing breaks."""

import pytest
from textual.binding import Binding

from entropix_mlx.backends.recorded import RecordedBackend, Recording
from entropix_mlx.chat.conversation import Conversation, Reply, Turn
from entropix_mlx.settings import Settings
from tests.steps import make_steps
from tests.tui.conftest import idle, ready, running, until
from tui.app import ChatApp
from tui.base import WorkspaceApp
from tui.composer.composer import Composer
from tui.composer.status import State
from tui.transcript.transcript import Transcript
from tui.workspace import Workspace

ENDING = {"app.quit", "app.palette"}
KEYS = [
    binding.key.partition(",")[0]
    for group in (
        ChatApp.BINDINGS,
        Workspace.BINDINGS,
        Composer.BINDINGS,
        Transcript.BINDINGS,
        WorkspaceApp.BINDINGS,
    )
    for binding in group
    if isinstance(binding, Binding) and binding.id not in ENDING
]


async def asked(pilot):
    await idle(pilot)
    await pilot.press("h", "i", "enter")
    await until(pilot, lambda: ready(pilot.app) and pilot.app.workspace.transcript.last_answer)


async def in_the_tokens(pilot):
    await asked(pilot)
    await pilot.press("tab")


async def answering(pilot):
    pilot.app.backend.recording.pace = 0.01
    await idle(pilot)
    await pilot.press("h", "i", "enter")
    await until(pilot, lambda: pilot.app.status.state is State.GENERATING)


async def loading(pilot):
    pilot.app.status.state = State.LOADING


async def failed(pilot):
    await idle(pilot)
    pilot.app.status.state = State.FAILED


SIZES = [(40, 10), (80, 24), (160, 45)]
STATES = [idle, asked, in_the_tokens, answering, loading, failed]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
async def test_every_key_in_every_state(state, size):
    steps = make_steps(40)
    recorded = Conversation(turns=[Turn("hi", [Reply(1, steps), Reply(2, steps[:9])])])
    app = ChatApp(RecordedBackend(Settings(), Recording(recorded, pace=0.0)))
    async with running(app, size) as pilot:
        await state(pilot)
        focused = app.focused
        for key in KEYS:
            await pilot.press(key)
            while len(app.screen_stack) > 1:
                await pilot.press("escape")
            if focused is not None:
                focused.focus()
