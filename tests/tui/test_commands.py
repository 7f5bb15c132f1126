"""Commands in the field do what they do in --plain, and are never sent to the model."""

import pytest

from tests.tui.conftest import ask, drive, notices, ready, turns, until
from tui.composer.composer import Composer
from tui.screens.help import HelpScreen


async def command(pilot, text: str) -> None:
    pilot.app.composer.focus()
    pilot.app.composer.text = text
    await pilot.press("enter")
    await pilot.pause()


def test_commands(make_chat, tmp_path):
    app = make_chat(max_tokens=4)

    async def scenario(pilot):
        await ask(pilot, "hi")
        await command(pilot, "/regenerate")
        await until(pilot, lambda: ready(app) and len(turns(app)[0].answers) == 2)
        await command(pilot, "/select 1")
        await until(pilot, lambda: ready(app) and turns(app)[0].selected == 0)
        token = turns(app)[0].answer.steps[1].top_logprobs[-1].token
        await command(pilot, f"/fork 1 {token}")
        await until(pilot, lambda: ready(app) and len(turns(app)[0].answers) == 3)
        assert turns(app)[0].answer.steps[1].token == token
        await command(pilot, f"/save {tmp_path / 'chat.json'}")
        await command(pilot, "/edit ho")
        await until(pilot, lambda: ready(app) and turns(app)[0].question == "ho")
        await command(pilot, "/system Be brief.")
        await until(pilot, lambda: ready(app) and app.workspace.conversation.system_prompt)
        await command(pilot, "/new")
        await until(pilot, lambda: ready(app) and not turns(app))
        await command(pilot, f"/load {tmp_path / 'chat.json'}")
        await until(pilot, lambda: ready(app) and len(turns(app)) == 1)
        assert turns(app)[0].question == "hi"
        await command(pilot, "/steps")
        assert app.workspace.transcript.cursor == len(app.workspace.last_steps) - 1
        await command(pilot, "/help")
        assert isinstance(app.screen, HelpScreen)
        await pilot.press("escape")
        assert app.composer.text == ""
        await command(pilot, "/quit")

    drive(app, scenario)
    assert not app.is_running


@pytest.mark.parametrize("text", ["/frok 1 2", "/fork one", "/select", "/edit ho"])
def test_a_mistake_in_a_command_stays_in_the_field(make_chat, text):
    app = make_chat(max_tokens=4)

    async def scenario(pilot):
        await until(pilot, lambda: ready(app))
        await command(pilot, text)
        await until(pilot, lambda: notices(app))
        assert app.query_one(Composer).text == text
        assert not turns(app), "nothing was sent to the model"

    drive(app, scenario)
