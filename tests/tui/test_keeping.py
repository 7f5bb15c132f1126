"""Chats are kept by themselves, listed, opened again; another model goes on with them."""

import os
import threading

import pytest
from textual.widgets import Input, OptionList

from entropix_mlx.backends.local import LocalBackend
from entropix_mlx.chat.conversation import Conversation, Reply, Turn
from entropix_mlx.chat.store import Store
from entropix_mlx.checkpoints.inventory import LocalModel
from entropix_mlx.errors import ModelNotFoundError
from entropix_mlx.settings import Settings
from tests.tui.conftest import ask, drive, load_tiny, notices, ready, turns, until
from tui.app import ChatApp
from tui.composer.status import State
from tui.screens.chats import ChatList
from tui.screens.dialogs import ConfirmDialog
from tui.screens.models import ModelPicker


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "chats")


@pytest.fixture
def make_kept(make_chat, store):
    def make(**settings) -> ChatApp:
        app = make_chat(**{"max_tokens": 3} | settings)
        app.keeper._store = store
        return app

    return make


def keep(store, *questions, title=None):
    """Keep a chat, as an earlier session would have."""
    chat = Conversation(turns=[Turn(text, [Reply(1, [])]) for text in questions], title=title)
    store.save(chat)
    return chat


def names(app) -> list[str]:
    return [card.name for card in app.screen._listed]


def test_a_chat_is_kept_and_goes_on_another_day(make_kept, store):
    first = make_kept()

    async def ask_something(pilot):
        await ask(pilot, "one")
        await until(pilot, store.cards)
        await ask(pilot, "two")

    drive(first, ask_something)
    assert [(card.name, card.turns) for card in store.cards()] == [("one", 2)]
    assert store.crashed() == []
    later = make_kept()

    async def go_on(pilot):
        await until(pilot, lambda: ready(later))
        await pilot.press("ctrl+l")
        await until(pilot, lambda: names(later) == ["one"])
        await pilot.press("enter")
        await until(pilot, lambda: ready(later) and len(turns(later)) == 2)
        await ask(pilot, "three")

    drive(later, go_on)
    assert [(card.name, card.turns) for card in store.cards()] == [("one", 3)]


def test_chats_are_searched_renamed_and_deleted(make_kept, store):
    for question in ("cats", "dogs", "ships"):
        keep(store, question)
    app = make_kept()

    async def scenario(pilot):
        await until(pilot, lambda: ready(app))
        await pilot.press(*"/chats", "enter")
        await until(pilot, lambda: isinstance(app.screen, ChatList) and len(names(app)) == 3)
        chats = app.screen
        await pilot.press(*"dog")
        assert names(app) == ["dogs"]
        await pilot.press("ctrl+e")
        await pilot.pause()
        app.screen.query_one(Input).value = "Dogs, renamed"
        await pilot.press("enter")
        await until(pilot, lambda: app.screen is chats and names(app) == ["Dogs, renamed"])
        await pilot.press("ctrl+d")
        assert isinstance(app.screen, ConfirmDialog)
        await pilot.press("escape", "ctrl+d", "enter")
        await until(pilot, lambda: app.screen is chats and names(app) == [])
        await pilot.press("backspace", "backspace", "backspace", "down", "up", "escape")
        assert not turns(app)

    drive(app, scenario)
    assert {card.name for card in store.cards()} == {"cats", "ships"}


def test_the_open_chat_is_renamed_by_a_command(make_kept, store):
    app = make_kept()

    async def scenario(pilot):
        await ask(pilot, "hi")
        await pilot.press(*"/rename", "space", *"Greetings", "enter")
        await until(pilot, lambda: [card.name for card in store.cards()] == ["Greetings"])
        await pilot.press("ctrl+l")
        await until(pilot, lambda: names(app) == ["Greetings"])
        await pilot.press("ctrl+d")
        assert "this chat is open" in notices(app)
        await pilot.press("enter")
        assert len(turns(app)) == 1

    drive(app, scenario)


def test_a_chat_that_was_open_in_a_crash_is_offered(make_kept, store):
    chat = keep(store, "lost?")
    store.open(chat.id)
    store._mark(os.getpid()).rename(store._mark(2**22 + 1))
    app = make_kept()

    async def scenario(pilot):
        assert isinstance(app.screen, ConfirmDialog)
        await pilot.press("enter")
        await until(pilot, lambda: ready(app) and [t.question for t in turns(app)] == ["lost?"])

    drive(app, scenario)


def test_a_store_that_fails_is_told_once(make_kept, store):
    store.folder.parent.mkdir(exist_ok=True)
    store.folder.touch()
    app = make_kept()

    async def scenario(pilot):
        await ask(pilot, "hi")
        await until(pilot, lambda: "this chat is not kept" in notices(app))
        await ask(pilot, "ho")
        await pilot.press("ctrl+l")
        assert notices(app).count("cannot write") == 1
        assert not isinstance(app.screen, ChatList)

    drive(app, scenario)


@pytest.fixture
def with_models(monkeypatch):
    """A chat for which there are two models, of which one cannot be loaded."""
    entries = [
        LocalModel("tiny-2", "tiny-2", 10**8, "float32", 4096, None),
        LocalModel("huge", "huge", 10**12, "bfloat16", 4096, "needs 1000 GB of memory"),
        LocalModel("gone", "gone", 10**8, "float32", 4096, None),
    ]
    monkeypatch.setattr("entropix_mlx.checkpoints.inventory.inventory", lambda: entries)
    gate = threading.Event()

    def load_named(name):
        gate.wait(10)
        if name == "gone":
            raise ModelNotFoundError("no model 'gone'")
        return load_tiny()

    def make(load=load_tiny) -> ChatApp:
        settings = Settings(max_tokens=3, seed=1, top_logprobs=4)
        return ChatApp(LocalBackend("tiny", load, settings, load_named=load_named))

    return make, gate


async def pick(pilot, number: int) -> None:
    app = pilot.app
    await pilot.press("f5")
    await until(pilot, lambda: app.screen.query_one(OptionList).option_count == 3)
    assert app.screen.query_one(OptionList).get_option_at_index(1).disabled
    app.screen.query_one(OptionList).highlighted = number
    await pilot.press("enter")


def test_another_model_goes_on_with_the_conversation(with_models):
    make, gate = with_models
    app = make()

    async def scenario(pilot):
        await ask(pilot, "one")
        await pick(pilot, 0)
        await until(pilot, lambda: "▰" in str(app.status.render()))
        gate.set()
        await until(pilot, lambda: ready(app))
        assert app.status.model == "tiny-2"
        await ask(pilot, "two")
        await pick(pilot, 2)
        await until(pilot, lambda: "no model 'gone'" in notices(app) and ready(app))
        assert app.status.model == "tiny-2"
        await ask(pilot, "three")
        assert len(turns(app)) == 3

    drive(app, scenario)


def test_a_model_can_be_chosen_where_none_could_be_loaded(with_models):
    make, gate = with_models
    gate.set()

    def fail():
        raise ModelNotFoundError("no model 'absent'")

    app = make(fail)

    async def scenario(pilot):
        await until(pilot, lambda: app.status.state is State.FAILED)
        await pick(pilot, 2)
        await until(pilot, lambda: "no model 'gone'" in notices(app))
        await until(pilot, lambda: app.status.state is State.FAILED)
        await pick(pilot, 0)
        await until(pilot, lambda: ready(app))
        await ask(pilot, "hi")
        assert not isinstance(app.screen, ModelPicker)

    drive(app, scenario)
