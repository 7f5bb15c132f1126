"""The field: completion, earlier questions, files, and the questions of the welcome card."""

import pytest

from tests.tui.conftest import ask, drive, notices, ready, turns, until
from tui.gauges.lines import Compact
from tui.help_text import QUESTIONS, Welcome


def test_tab_completes_commands_and_files(make_chat, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.md").write_text("forty-two")
    app = make_chat(max_tokens=2)

    async def scenario(pilot):
        await until(pilot, lambda: ready(app))
        composer = app.composer
        await pilot.press("slash", "r")
        assert composer.hints.display
        await pilot.press("tab")
        assert composer.text == "/regenerate"
        await pilot.press("tab")
        assert composer.text == "/rename"
        assert composer.has_focus
        composer.text = "see @no"
        await pilot.pause()
        await pilot.press("tab")
        assert composer.text == "see @notes.md"
        await pilot.press("enter")
        await until(pilot, lambda: ready(app) and turns(app))
        assert "forty-two" in turns(app)[0].question
        assert not composer.hints.display
        await pilot.press(*"@x.py", "enter")
        assert "no file x.py" in notices(app)
        assert composer.text == "@x.py"

    drive(app, scenario)


def test_arrows_bring_earlier_questions_back(make_chat):
    app = make_chat(max_tokens=2)

    async def scenario(pilot):
        await ask(pilot, "one")
        await ask(pilot, "two")
        composer = app.composer
        await pilot.press(*"draft", "up")
        assert composer.text == "two"
        await pilot.press("up", "up")
        assert composer.text == "one"
        await pilot.press("down", "down")
        assert composer.text == "draft"
        composer.text = "first\nsecond"
        composer.move_cursor(composer.document.end)
        await pilot.press("up")
        assert composer.text == "first\nsecond", "the cursor moves within several lines"

    drive(app, scenario)


def test_a_number_asks_a_question_of_the_card(make_chat):
    app = make_chat(max_tokens=2)

    async def scenario(pilot):
        await until(pilot, lambda: ready(app))
        assert app.query_one(Welcome).display
        await pilot.press("2")
        assert app.composer.text == QUESTIONS[1]
        await pilot.press("+")
        assert app.composer.text == "2+", "it was a number after all"
        app.composer.text = ""
        await pilot.press("1", "enter")
        await until(pilot, lambda: ready(app) and turns(app))
        assert turns(app)[0].question == QUESTIONS[0]
        assert not app.query_one(Welcome).display
        await pilot.press("3")
        assert app.composer.text == "3"

    drive(app, scenario)


@pytest.mark.parametrize("size", [(60, 20), (80, 24)])
def test_the_card_fits_on_a_small_screen(make_chat, size):
    app = make_chat()

    async def scenario(pilot):
        await until(pilot, lambda: ready(app))
        transcript = app.workspace.transcript
        await until(pilot, lambda: not transcript.show_vertical_scrollbar)
        assert "F1" in transcript.welcome.visual.plain.splitlines()[-1]
        assert not app.query_one(Compact).display, "nothing is measured yet"

    drive(app, scenario, size)


def test_tab_marks_the_last_token_at_once(make_chat):
    app = make_chat(max_tokens=4)

    async def scenario(pilot):
        await ask(pilot, "hi")
        await pilot.press("tab")
        assert app.workspace.transcript.cursor == 3
        await pilot.press("tab")
        assert app.composer.has_focus

    drive(app, scenario)
