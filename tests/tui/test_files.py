"""Chats in files: saved while they go on, listed, exported, opened; models are switched."""

import json
import threading

import pytest
from textual import events
from textual.widgets import Input, OptionList

from entropix_mlx.chat.conversation import Conversation, Reply, Turn
from entropix_mlx.chat.store import Store
from entropix_mlx.checkpoints.local import LocalModel
from entropix_mlx.errors import ModelNotFoundError
from entropix_mlx.traces.trace import read_trace
from entropix_mlx.tui.composer.status import State
from entropix_mlx.tui.screens.choices import ChatList
from entropix_mlx.tui.screens.dialogs import ConfirmDialog
from entropix_mlx.tui.screens.picker import Picker
from tests.tui.conftest import (
    ask,
    chatting,
    fill,
    idle,
    load_tiny,
    notices,
    ready,
    running,
    shown_steps,
    turns,
    until,
)


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "chats")


@pytest.fixture
def make_saved(make_chat, store):
    return lambda **settings: make_chat(store=store, **{"max_tokens": 3} | settings)


def save(store, *questions):
    """Save a chat, as an earlier session would have."""
    chat = Conversation(turns=[Turn(text, [Reply(1, [])]) for text in questions])
    store.save(chat)
    return chat


def listed(app) -> list[str]:
    """Return the titles on the list of chats."""
    options = app.screen.query_one(OptionList).options if app.screen.query(OptionList) else []
    return [str(option.prompt).splitlines()[0] for option in options]


def saved(store) -> list:
    return [(card.name, card.turns) for card in store.cards()]


async def test_a_chat_is_saved_and_goes_on_another_day(make_saved, store):
    async with chatting(make_saved, "one") as (_, pilot):
        await until(pilot, store.cards)
        await ask(pilot, "two")
    assert saved(store) == [("one", 2)]
    assert store.crashed() == []
    async with chatting(make_saved) as (later, pilot):
        await pilot.press("ctrl+o")
        await until(pilot, lambda: listed(later) == ["one"])
        await pilot.press("enter")
        await until(pilot, lambda: ready(later) and len(turns(later)) == 2)
        await ask(pilot, "three")
        await until(pilot, lambda: saved(store) == [("one", 3)])
        await pilot.press("ctrl+o")
        await until(pilot, lambda: listed(later) == ["one"])
        await pilot.press("ctrl+d")
        assert "this chat is open" in notices(later)
        await pilot.press("enter")
        assert len(turns(later)) == 3


async def test_chats_are_searched_renamed_and_deleted(make_saved, store):
    for question in ("cats", "dogs", "ships"):
        save(store, question)
    async with chatting(make_saved) as (app, pilot):
        await pilot.press("ctrl+o")
        await until(pilot, lambda: isinstance(app.screen, ChatList) and len(listed(app)) == 3)
        chats = app.screen
        await pilot.press(*"dog")
        assert listed(app) == ["dogs"]
        await pilot.press("ctrl+e")
        await pilot.pause()
        app.screen.query_one(Input).value = "Dogs, renamed"
        await pilot.press("enter")
        await until(pilot, lambda: app.screen is chats and listed(app) == ["Dogs, renamed"])
        await pilot.press("ctrl+d")
        assert isinstance(app.screen, ConfirmDialog)
        await pilot.press("escape", "ctrl+d", "enter")
        await until(pilot, lambda: app.screen is chats and listed(app) == [])
        await pilot.press("backspace", "backspace", "backspace", "down", "up", "escape")
        assert not turns(app)
    assert {card.name for card in store.cards()} == {"cats", "ships"}


async def test_a_chat_that_was_open_in_a_crash_is_offered(make_saved, store, monkeypatch):
    chat = save(store, "lost?")
    with monkeypatch.context() as patched:
        patched.setattr("os.getpid", lambda: 2**22 + 1)  # above the largest process id
        store.open(chat.id)
    async with chatting(make_saved) as (app, pilot):
        assert isinstance(app.screen, ConfirmDialog)
        await pilot.press("enter")
        await until(pilot, lambda: ready(app) and [t.question for t in turns(app)] == ["lost?"])


async def test_a_store_that_fails_is_reported_once(make_saved, store):
    store.file.mkdir(parents=True)
    async with chatting(make_saved, "hi") as (app, pilot):
        await until(pilot, lambda: "this chat is not saved" in notices(app))
        await ask(pilot, "ho")
        assert notices(app).count("this chat is not saved") == 1


@pytest.fixture
def with_models(make_chat, monkeypatch):
    """A chat for which there are three models, of which two cannot be loaded."""
    entries = [
        LocalModel("tiny-2", "tiny-2", 10**8, "float32", 4096, None),
        LocalModel("huge", "huge", 10**12, "bfloat16", 4096, "needs 1000 GB of memory"),
        LocalModel("gone", "gone", 10**8, "float32", 4096, None),
    ]
    monkeypatch.setattr("entropix_mlx.chat.local.inventory", lambda: entries)
    gate = threading.Event()

    def load_named(name):
        gate.wait(10)
        if name == "gone":
            raise ModelNotFoundError("no model 'gone'")
        return load_tiny()

    def make(load=load_tiny):
        return make_chat(load, load_named=load_named, max_tokens=3)

    return make, gate


async def pick(pilot, number: int) -> None:
    app = pilot.app
    await pilot.press("f5")
    await until(pilot, lambda: app.screen.query_one(OptionList).option_count == 3)
    assert app.screen.query_one(OptionList).get_option_at_index(1).disabled
    app.screen.query_one(OptionList).highlighted = number
    await pilot.press("enter")


async def test_another_model_goes_on_with_the_conversation(with_models):
    make, gate = with_models
    async with chatting(make, "one") as (app, pilot):
        await pick(pilot, 0)
        await until(pilot, lambda: app.status.progress.endswith(" s"))
        gate.set()
        await idle(pilot)
        assert app.status.model == "tiny-2"
        await ask(pilot, "two")
        await pick(pilot, 2)
        await until(pilot, lambda: "no model 'gone'" in notices(app) and ready(app))
        assert app.status.model == "tiny-2"
        await ask(pilot, "three")
        assert len(turns(app)) == 3


async def test_a_model_can_be_chosen_where_none_could_be_loaded(with_models):
    make, gate = with_models
    gate.set()

    def fail():
        raise ModelNotFoundError("no model 'absent'")

    app = make(fail)
    async with running(app) as pilot:
        await until(pilot, lambda: app.status.state is State.FAILED)
        await pick(pilot, 2)
        await until(pilot, lambda: "no model 'gone'" in notices(app))
        await until(pilot, lambda: app.status.state is State.FAILED)
        await pick(pilot, 0)
        await idle(pilot)
        await ask(pilot, "hi")
        assert not isinstance(app.screen, Picker)


async def test_save_export_and_open(make_chat, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with chatting(make_chat, "hi") as (app, pilot):
        for _ in range(2):
            await pilot.press("ctrl+s", "enter")
            await pilot.pause()
        assert sorted(p.name for p in tmp_path.iterdir()) == ["chat-2.json", "chat.json"]
        for name in ("chat.md", "chat.jsonl", "chat.html", "chat.doc"):
            await pilot.press("ctrl+s")
            await fill(pilot, str(tmp_path / name))
        text = app.workspace.transcript.last_answer.text
        assert text in (tmp_path / "chat.md").read_text()
        assert "<html" in (tmp_path / "chat.html").read_text()
        assert ".doc" in notices(app)
        assert not (tmp_path / "chat.doc").exists()
        trace = read_trace(tmp_path / "chat.jsonl")
        assert "".join(step.text for step in trace.steps) == text
        assert trace.header.messages == [{"role": "user", "content": "hi"}]
        assert json.loads((tmp_path / "chat.json").read_text())["turns"]
        assert "layers" in Conversation.load(tmp_path / "chat.json").turns[0].answer.model
        await pilot.press("ctrl+n")
        await until(pilot, lambda: ready(app) and not turns(app))
        await pilot.press("ctrl+o")
        await fill(pilot, str(tmp_path / "chat.json"))
        await until(pilot, lambda: ready(app) and shown_steps(app) == 12)
        assert app.workspace.transcript.last_answer.text == text


async def test_the_answer_with_the_cursor_is_shared(make_chat, tmp_path):
    async with chatting(make_chat, "one", "two", max_tokens=3) as (app, pilot):
        await pilot.press("tab", "left", "left", "left", "ctrl+s")
        assert app.workspace.transcript.turn == 0
        await fill(pilot, str(tmp_path / "first.jsonl"))
        steps = turns(app)[0].answer.steps
    trace = read_trace(tmp_path / "first.jsonl")
    assert [step.token for step in trace.steps] == [step.token for step in steps]
    assert trace.header.messages == [{"role": "user", "content": "one"}]


async def test_a_path_that_cannot_be_used_is_a_message(make_chat):
    async with chatting(make_chat, "hi", max_tokens=2) as (app, pilot):
        for name in ("~nobody-of-that-name/chat.json", ".", "/", "absent/chat.md"):
            await pilot.press("ctrl+s")
            await fill(pilot, name)
            assert f"cannot save {name}: " in notices(app)
        for name, message in (
            ("absent.json", "cannot read"),
            ("~nobody-of-that-name/chat.json", "no home folder is known for ~nobody"),
        ):
            await pilot.press("ctrl+o")
            await fill(pilot, name)
            await until(pilot, lambda message=message: ready(app) and message in notices(app))
        assert "unexpected" not in notices(app)
        assert len(turns(app)) == 1


async def test_a_file_is_replaced_only_on_request(make_chat, tmp_path):
    there = tmp_path / "thesis.md"
    there.write_text("mine")
    async with chatting(make_chat, "hi", max_tokens=2) as (app, pilot):
        for key in ("escape", "enter"):
            assert there.read_text() == "mine"
            await pilot.press("ctrl+s")
            await fill(pilot, str(there))
            await until(pilot, lambda: isinstance(app.screen, ConfirmDialog))
            await pilot.press(key)
        await until(pilot, lambda: "saved" in notices(app))
        assert "hi" in there.read_text()


async def test_keys_that_come_right_after_save_go_to_its_dialog(make_chat, tmp_path):
    path = tmp_path / "chat.json"
    async with chatting(make_chat, "hi", max_tokens=2) as (app, pilot):
        app.post_message(events.Key("ctrl+s", None))
        for key in str(path):
            app.post_message(events.Key(key, key))
        app.post_message(events.Key("enter", None))
        await until(pilot, lambda: "saved" in notices(app))
        assert path.exists()
        assert app.composer.text == ""
        assert len(turns(app)) == 1
        await pilot.press("ctrl+s")
        dialog = app.screen
        await pilot.press("ctrl+s", "ctrl+o", "ctrl+f", "f3")
        assert app.screen is dialog, "a dialog opens no other dialog"
        assert app.composer.text == ""
        await pilot.press("ctrl+q")
        await pilot.pause()
    assert not app.is_running
