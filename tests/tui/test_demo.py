"""The recorded session of `entropix chat --demo`: all of the screen, and no model."""

from contextlib import asynccontextmanager

from entropix_mlx.chat.recorded import RecordedSource, demo_recording
from entropix_mlx.chat.session import ChatSession
from entropix_mlx.tui.app import ChatApp
from tests.steps import first_divergence
from tests.tui.conftest import idle, notices, ready, running, turns, until


@asynccontextmanager
async def demo(pace=0):
    app = ChatApp(ChatSession(RecordedSource(demo_recording(pace=pace))))
    async with running(app) as pilot:
        await idle(pilot)
        yield app, pilot


async def test_the_demo():
    async with demo() as (app, pilot):
        await pilot.press(*"Else?", "enter")
        await until(pilot, lambda: "only a recording" in notices(app))
        app.composer.text = ""
        await pilot.press("up", "up", "enter")
        await until(pilot, lambda: ready(app) and turns(app) and turns(app)[0].answer.steps)
        first = turns(app)[0].answer.text
        await pilot.press("ctrl+r")
        await until(pilot, lambda: ready(app) and len(turns(app)[0].answers) == 2)
        assert turns(app)[0].answer.text != first
        await pilot.press("ctrl+n")
        await until(pilot, lambda: ready(app) and not turns(app))
        await pilot.press("up", "enter")
        await until(pilot, lambda: ready(app) and turns(app) and turns(app)[0].answer.steps)
        other = demo_recording().conversation.turns[0].answers[1].steps
        part = first_divergence(turns(app)[0].answer.steps, other)
        app.workspace.transcript.focus()
        app.workspace.transcript.point(part)
        await pilot.pause()
        await pilot.press(*["up"] * 4)
        while app.workspace.inspector.tokens != (other[part].token,):
            await pilot.press("down")
        await pilot.press("enter")
        await until(pilot, lambda: ready(app) and len(turns(app)[0].answers) == 2)
        assert turns(app)[0].answer.steps == other
        await pilot.press("home", *["down"] * 5, "enter")
        await until(pilot, lambda: "only what was recorded" in notices(app))
