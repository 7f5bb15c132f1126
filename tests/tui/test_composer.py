"""The field: completion, earlier questions, files, and text that is typed or pasted elsewhere."""

import pytest
from textual import events

from entropix_mlx.palette import QUESTIONS
from entropix_mlx.tui.gauges.lines import Compact
from entropix_mlx.tui.help_text import Welcome
from entropix_mlx.tui.inspector.why import INSIDE, OUTSIDE
from entropix_mlx.tui.transcript.transcript import ForwardsTyping
from tests.tui.conftest import (
    answers,
    ask,
    idle,
    notices,
    ready,
    running,
    send,
    shown_steps,
    turns,
    until,
)

SENTENCE = "find a fancy name for my tiny cat [or two]"
"""It begins with a key, holds all of them, and would fork the answer with each f."""


async def test_tab_completes_commands_and_files(make_chat, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.md").write_text("forty-two")
    app = make_chat(max_tokens=2)
    async with running(app) as pilot:
        await idle(pilot)
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


async def test_lines_and_earlier_questions(make_chat):
    app = make_chat(max_tokens=2)
    composer = app.composer
    async with running(app) as pilot:
        await idle(pilot)
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
        assert composer.text == "a\nb\nc", "there is no earlier one"
        await pilot.press("down")
        assert composer.text == "a\nb\nc", "the cursor moves within several lines"
        composer.move_cursor(composer.document.end)
        await pilot.press("down", "down")
        assert composer.text == "draft"


async def test_a_number_asks_a_question_of_the_card(make_chat):
    app = make_chat(max_tokens=2)
    composer = app.composer
    async with running(app) as pilot:
        await idle(pilot)
        assert app.query_one(Welcome).display
        await pilot.press("2")
        assert composer.text == QUESTIONS[1]
        await pilot.press("+")
        assert composer.text == "2+", "it was a number after all"
        composer.text = ""
        await pilot.press("tab", "1", "enter")
        await until(pilot, lambda: ready(app) and turns(app))
        assert turns(app)[0].question == QUESTIONS[0]
        assert not app.query_one(Welcome).display
        await pilot.press("3")
        assert composer.text == "3"


@pytest.mark.parametrize("size", [(60, 20), (80, 24)])
async def test_the_card_fits_on_a_small_screen(make_chat, size):
    app = make_chat()
    async with running(app, size) as pilot:
        transcript = app.workspace.transcript
        await until(pilot, lambda: ready(app) and not transcript.show_vertical_scrollbar)
        assert "F1" in transcript.welcome.visual.plain.splitlines()[-1]
        assert not app.query_one(Compact).display, "nothing is measured yet"


async def test_tab_goes_to_the_tokens_and_back_and_the_key_that_explains_is_named(make_chat):
    app = make_chat(max_tokens=4)
    why = app.workspace.why
    async with running(app) as pilot:
        await ask(pilot, "hi")
        await until(pilot, lambda: f"{OUTSIDE}: " in str(why.visual))
        await pilot.press("tab")
        assert app.workspace.transcript.cursor == 3, "the last token"
        await pilot.press("escape")
        app.workspace.transcript.focus()
        await until(pilot, lambda: f"{INSIDE}: " in str(why.visual))
        await pilot.press("tab")
        assert app.composer.has_focus
        await until(pilot, lambda: f"{OUTSIDE}: " in str(why.visual))


@pytest.fixture
def slow_machine(monkeypatch):
    monkeypatch.setattr(ForwardsTyping, "WORD_SECONDS", 60.0)


@pytest.mark.usefixtures("slow_machine")
async def test_a_sentence_that_is_typed_or_pasted_in_the_tokens_goes_to_the_field(make_chat):
    app = make_chat()
    composer = app.composer
    async with running(app) as pilot:
        await ask(pilot, "hi")
        for sentence in [SENTENCE, "Why?", "name it", "to be", "f g y"]:
            await pilot.press("tab", "left", "left")
            await pilot.press(*("space" if letter == " " else letter for letter in sentence))
            assert composer.text == sentence
            assert app.focused is composer
            composer.text = ""
        assert answers(app) == 1, "no fork began"
        await pilot.press(*"draft")
        composer.select_all()
        await pilot.press("tab", "n", "n", "n", *"Why")
        assert composer.text == "Why", "repeated keys are no part of the word; a selection goes"
        composer.text = ""
        await pilot.press("tab")
        for letter in SENTENCE:  # all at once, as from a paste that is not marked as one
            app.post_message(events.Key("space" if letter == " " else letter, letter))
        await until(pilot, lambda: len(composer.text) == len(SENTENCE))
        assert composer.text == SENTENCE
        composer.text = ""
        await pilot.press(*"So:", "tab")
        app.post_message(events.Paste(SENTENCE))
        await until(pilot, lambda: composer.text == f"So:{SENTENCE}")
        assert app.focused is composer
        assert len(turns(app)) == 1, "nothing was sent"


async def test_keys_one_by_one_are_keys(make_chat, monkeypatch):
    monkeypatch.setattr(ForwardsTyping, "WORD_SECONDS", 0.0)
    app = make_chat()
    async with running(app) as pilot:
        await ask(pilot, "hi")
        await pilot.press("tab", *"gg", *"what")
        assert app.composer.text == "what", "not the keys that were pressed before"
        await send(pilot, "")
        await until(pilot, lambda: len(turns(app)) == 2)
