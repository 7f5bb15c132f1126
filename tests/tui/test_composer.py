"""The field: sending, earlier questions, the palette, and the way to the tokens."""

from entropix_mlx.palette import QUESTIONS
from entropix_mlx.tui.inspector.why import INSIDE, OUTSIDE
from entropix_mlx.tui.keys import Palette
from tests.tui.conftest import ask, chatting, notices, ready, shown_steps, turns, until


async def test_lines_and_earlier_questions(make_chat):
    async with chatting(make_chat, max_tokens=2) as (app, pilot):
        composer = app.composer
        await pilot.press("a", "ctrl+j", "b", "shift+enter", "c")
        assert composer.text == "a\nb\nc"
        await pilot.press("enter")
        await until(pilot, lambda: ready(app) and shown_steps(app) == 2)
        assert turns(app)[0].question == "a\nb\nc"
        await ask(pilot, "two")
        await pilot.press(*"draft", "up")
        assert composer.text == "two"
        await pilot.press("up")
        assert composer.text == "a\nb\nc"
        composer.move_cursor((0, 0))
        await pilot.press("up")
        assert composer.text == QUESTIONS[0], "then the questions of the card"
        await pilot.press("down")
        composer.move_cursor((0, 0))
        await pilot.press("down")
        assert composer.text == "a\nb\nc", "the cursor moves within several lines"
        composer.move_cursor(composer.document.end)
        await pilot.press("down", "down")
        assert composer.text == "draft"


async def test_a_slash_in_an_empty_field_opens_the_palette(make_chat, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.md").write_text("forty-two")
    async with chatting(make_chat, max_tokens=2) as (app, pilot):
        await pilot.press("slash")
        assert isinstance(app.screen, Palette)
        await pilot.press("escape", *"a/b @notes.md", "enter")
        await until(pilot, lambda: ready(app) and turns(app))
        assert turns(app)[0].question.startswith("a/b")
        assert "forty-two" in turns(app)[0].question
        await pilot.press(*"@x.py", "enter")
        assert "no file x.py" in notices(app)
        assert app.composer.text == "@x.py"


async def test_tab_goes_to_the_tokens_and_back_and_the_key_that_explains_is_named(make_chat):
    async with chatting(make_chat, "hi", max_tokens=4) as (app, pilot):
        why = app.workspace.why
        await until(pilot, lambda: OUTSIDE in str(why.visual))
        await pilot.press("tab")
        assert app.workspace.transcript.cursor is not None
        await pilot.press("escape")
        app.workspace.transcript.focus()
        await until(pilot, lambda: INSIDE in str(why.visual)[-3:])
        await pilot.press("tab")
        assert app.composer.has_focus
        await until(pilot, lambda: OUTSIDE in str(why.visual))
