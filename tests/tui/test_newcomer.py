"""What newcomers stumbled over: keys that were named and did something else."""

from tests.tui.conftest import ask, drive, ready, until
from tui.help_text import QUESTIONS
from tui.inspector.why import INSIDE, OUTSIDE


def test_tab_goes_to_the_tokens_only_if_there_are_any(make_chat):
    app = make_chat()

    async def scenario(pilot):
        await until(pilot, lambda: ready(app))
        await pilot.press("tab")
        assert app.composer.has_focus
        await pilot.press("1")
        assert app.composer.text == QUESTIONS[0]
        await pilot.press("ctrl+a", "delete")
        await ask(pilot, "hi")
        await pilot.press("tab")
        assert app.workspace.transcript.has_focus

    drive(app, scenario, size=(120, 40))


def test_the_key_that_is_named_explains_a_token(make_chat):
    app = make_chat()

    async def scenario(pilot):
        why = app.workspace.why
        await ask(pilot, "hi")
        await until(pilot, lambda: f"{OUTSIDE}: " in str(why.visual))
        app.workspace.transcript.focus()
        await until(pilot, lambda: f"{INSIDE}: " in str(why.visual))
        await pilot.press("tab")
        await until(pilot, lambda: f"{OUTSIDE}: " in str(why.visual))

    drive(app, scenario, size=(120, 40))
