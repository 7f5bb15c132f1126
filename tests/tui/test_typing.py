"""Letters are keys in the tokens: a sentence that is typed or pasted there is none of them."""

import pytest
from textual import events

from tests.tui.conftest import ask, drive, notices, ready, turns, until
from tests.tui.helpers import answers
from tui.keys import KeyBar
from tui.transcript.transcript import PassesOn

SENTENCE = "find a fancy name for my tiny cat [or two]"
"""It begins with a key, holds all of them, and would start a fork with each f."""


@pytest.fixture(autouse=True)
def slow_machine(monkeypatch):
    monkeypatch.setattr(PassesOn, "WORD_SECONDS", 60.0)


def keys(text: str) -> list[str]:
    return ["space" if letter == " " else letter for letter in text]


@pytest.mark.parametrize("sentence", [SENTENCE, "Why?", "name it", "to be", "f g y"])
def test_a_sentence_that_is_typed_in_the_tokens_is_in_the_field(make_chat, sentence):
    app = make_chat()

    async def scenario(pilot):
        await ask(pilot, "hi")
        await pilot.press("tab", "left", "left")
        await pilot.press(*keys(sentence))
        assert app.composer.text == sentence
        assert app.focused is app.composer
        assert ready(app)
        assert answers(app) == 1, "no fork began"

    drive(app, scenario)


def test_hops_are_no_part_of_the_word_that_follows_and_a_selection_is_replaced(make_chat):
    app = make_chat()

    async def scenario(pilot):
        await ask(pilot, "hi")
        await pilot.press(*"draft")
        app.composer.select_all()
        await pilot.press("tab", "n", "n", "n", *"Why")
        assert app.composer.text == "Why"

    drive(app, scenario)


def test_keys_that_come_before_the_field_has_the_focus_stay_in_order(make_chat):
    app = make_chat()

    async def scenario(pilot):
        await ask(pilot, "hi")
        await pilot.press("tab")
        for letter in SENTENCE:  # all at once, as from a paste that is not marked as one
            app.post_message(events.Key(keys(letter)[0], letter))
        await until(pilot, lambda: len(app.composer.text) == len(SENTENCE))
        assert app.composer.text == SENTENCE

    drive(app, scenario)


def test_a_paste_in_the_tokens_joins_the_draft_in_the_field(make_chat):
    app = make_chat()

    async def scenario(pilot):
        await ask(pilot, "hi")
        await pilot.press(*"So: ", "tab")
        app.post_message(events.Paste(SENTENCE))
        await until(pilot, lambda: app.composer.text == f"So: {SENTENCE}")
        assert app.focused is app.composer
        assert len(turns(app)) == 1, "nothing was sent"

    drive(app, scenario)


def test_keys_one_by_one_are_keys(make_chat, monkeypatch):
    monkeypatch.setattr(PassesOn, "WORD_SECONDS", 0.0)
    app = make_chat()

    async def scenario(pilot):
        await ask(pilot, "hi")
        await pilot.press("tab", *"gg", *"what")
        assert app.composer.text == "what", "not the keys that were pressed before"

    drive(app, scenario)


@pytest.mark.parametrize("key", ["f", "enter"])
def test_a_way_is_gone_only_once_it_was_chosen(make_chat, key):
    app = make_chat(temperature=5.0)  # the tokens are not the most probable ones

    async def scenario(pilot):
        await ask(pilot, "hi")
        await pilot.press("tab", "home")
        for _ in range(12):
            await pilot.press(key)
            assert "choose another way first" in notices(app)
            await pilot.press("right")
        assert answers(app) == 1
        assert "transcript.fork" not in {b.id for b in app.query_one(KeyBar).shown}
        await pilot.press("home", "down")
        while not app.workspace.inspector.chosen:
            await pilot.press("up")
        assert "transcript.fork" in {b.id for b in app.query_one(KeyBar).shown}
        await pilot.press(key)
        await until(pilot, lambda: ready(app) and answers(app) == 2)

    drive(app, scenario)
