"""The dialog of the options that are plain numbers."""

from textual.widgets import Input, Label

from tests.tui.conftest import ask, drive, ready, turns, until
from tui.screens.options import OptionsDialog


def test_options_are_used_from_the_next_answer_on(make_chat):
    app = make_chat()

    async def scenario(pilot):
        await until(pilot, lambda: ready(app))
        await pilot.press("f6")
        dialog = app.screen
        assert isinstance(dialog, OptionsDialog)
        dialog.query_one("#max_tokens", Input).value = "5"
        dialog.query_one("#top_k", Input).value = "x"
        await pilot.press("enter")
        assert "top_k must be a whole number" in str(dialog.query_one("#fault", Label).visual)
        dialog.query_one("#top_k", Input).value = "3"
        dialog.query_one("#top_p", Input).value = "7"
        await pilot.press("enter")
        assert "top_p must be" in str(dialog.query_one("#fault", Label).visual)
        dialog.query_one("#top_p", Input).value = ""
        await pilot.press("ctrl+s")
        await ask(pilot, "hi")
        assert len(turns(app)[0].answer.steps) == 5
        assert app._settings.top_k == 3
        await pilot.press("f6", "escape")
        assert app.screen is not dialog

    drive(app, scenario)


def test_only_what_the_sampler_takes_is_shown(make_chat):
    app = make_chat(sampler="greedy")

    async def scenario(pilot):
        await until(pilot, lambda: ready(app))
        await pilot.press(*"/settings", "enter")
        await until(pilot, lambda: isinstance(app.screen, OptionsDialog))
        assert not app.screen.query("#temperature")
        assert app.screen.query("#max_tokens")

    drive(app, scenario)
