"""Saving, opening, recording: chats, Markdown and traces; a failure is a message."""

import json

import pytest
from textual import events
from textual.widgets import Input

from entropix_mlx.chat.conversation import Conversation
from entropix_mlx.traces.trace import TraceFolder, read_trace
from tests.conftest import make_tiny_model
from tests.tui.conftest import ask, drive, load_tiny, notices, ready, turns, until
from tests.tui.helpers import fill, fill_long, generating, shown_steps
from tui.screens.dialogs import ConfirmDialog
from tui.screens.tuning.tune import Slider


def test_answers_are_recorded_also_one_that_was_stopped(make_chat, tmp_path):
    app = make_chat(traces=TraceFolder(tmp_path, "tiny"), max_tokens=2000)

    async def scenario(pilot):
        await pilot.press("o", "n", "e", "enter")
        await generating(pilot)
        await pilot.press("escape")
        await until(pilot, lambda: ready(app))

    drive(app, scenario)
    trace = read_trace(tmp_path / "001.jsonl")
    kept = turns(app)[0].answer.steps
    assert [step.token for step in trace.steps] == [step.token for step in kept]
    assert trace.totals["finish_reason"] is None, "neither complete nor interrupted: stopped"
    assert trace.header.messages == [{"role": "user", "content": "one"}]


def test_an_edit_ends_where_another_chat_is_opened(make_chat, tmp_path):
    app = make_chat(max_tokens=2)

    async def scenario(pilot):
        await ask(pilot, "one")
        await ask(pilot, "two")
        await pilot.press("ctrl+s")
        await fill(pilot, str(tmp_path / "chat.json"))
        await pilot.press("ctrl+n")
        await until(pilot, lambda: ready(app) and not turns(app))
        await ask(pilot, "other")
        await pilot.press("ctrl+g", "ctrl+o")
        await fill(pilot, str(tmp_path / "chat.json"))
        await until(
            pilot,
            lambda: ready(app) and len(turns(app)) == 2,
        )
        await pilot.press("enter")
        await until(
            pilot,
            lambda: ready(app) and len(turns(app)) != 2,
        )
        assert [t.question for t in turns(app)] == ["one", "two", "other"]

    drive(app, scenario)


def test_save_export_and_open(make_chat, tmp_path):
    app = make_chat()

    async def scenario(pilot):
        await ask(pilot, "hi")
        for name in ("chat.json", "chat.md", "chat.jsonl", "absent/chat.json"):
            await pilot.press("ctrl+s")
            await fill(pilot, str(tmp_path / name))
        text = app.workspace.transcript.last_answer.text
        assert "cannot save" in notices(app)
        assert text in (tmp_path / "chat.md").read_text()
        trace = read_trace(tmp_path / "chat.jsonl")
        assert "".join(step.text for step in trace.steps) == text
        assert trace.header.messages == [{"role": "user", "content": "hi"}]
        assert json.loads((tmp_path / "chat.json").read_text())["turns"]
        await pilot.press("ctrl+n")
        await until(pilot, lambda: not turns(app))
        await pilot.press("ctrl+o")
        await fill(pilot, str(tmp_path / "chat.json"))
        await until(pilot, lambda: ready(app) and shown_steps(app) == 12)
        assert app.workspace.transcript.last_answer.text == text
        await pilot.press("ctrl+o")
        await fill(pilot, str(tmp_path / "absent.json"))
        await until(pilot, lambda: "cannot read" in notices(app))

    drive(app, scenario)


def test_an_answer_can_be_saved_while_it_comes(make_chat, tmp_path):
    app = make_chat(max_tokens=3000)

    async def scenario(pilot):
        await pilot.press("h", "i", "enter")
        await generating(pilot, 5)
        shown = [step.token for step in app.workspace.transcript.last_answer.steps]
        await pilot.press("ctrl+s")
        await fill(pilot, str(tmp_path / "chat.json"))
        await pilot.press("escape")
        await until(pilot, lambda: ready(app))
        saved = Conversation.load(tmp_path / "chat.json").turns[0].answer.steps
        assert [step.token for step in saved][: len(shown)] == shown
        whole = turns(app)[0].answer.steps
        assert whole == app.workspace.transcript.last_answer.steps, "no step is there twice"
        tokens = [step.token for step in whole]
        assert [step.token for step in saved] == tokens[: len(saved)]

    drive(app, scenario)


def test_a_saved_answer_says_which_model_wrote_it(make_chat, tmp_path):
    app = make_chat()

    async def scenario(pilot):
        await ask(pilot, "hi")
        await pilot.press("ctrl+s")
        await fill(pilot, str(tmp_path / "chat.json"))
        assert "layers" in Conversation.load(tmp_path / "chat.json").turns[0].answer.model

    drive(app, scenario)


def test_the_name_to_save_under_is_free(make_chat, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    app = make_chat()

    async def scenario(pilot):
        await ask(pilot, "hi")
        for _ in range(3):
            await pilot.press("ctrl+s", "enter")
            await pilot.pause()
        assert sorted(p.name for p in tmp_path.iterdir()) == [
            "chat-2.json", "chat-3.json", "chat.json",
        ]  # fmt: skip

    drive(app, scenario)


def test_a_trace_has_the_messages_that_the_model_saw(make_chat, tmp_path):
    def load():
        return make_tiny_model(max_position_embeddings=100), load_tiny()[1]

    app = make_chat(load)

    async def scenario(pilot):
        for question in ("one", "two", "three", "four"):
            await ask(pilot, question)
        assert app.workspace.conversation.dropped
        await pilot.press("ctrl+s")
        await fill(pilot, str(tmp_path / "chat.jsonl"))

    drive(app, scenario)
    seen = read_trace(tmp_path / "chat.jsonl").header.messages
    assert seen == app.workspace.conversation.messages[2 * app.workspace.conversation.dropped : -1]


@pytest.mark.parametrize("name", ["~nobody-of-that-name/chat.json", ".", "/", "absent/chat.md"])
def test_a_path_that_cannot_be_written_is_a_message(make_chat, name):
    app = make_chat(max_tokens=2)

    async def scenario(pilot):
        await ask(pilot, "hi")
        await pilot.press("ctrl+s")
        await fill(pilot, name)
        assert f"cannot save {name}: " in notices(app)

    drive(app, scenario)


def test_a_home_folder_of_nobody_is_a_message_when_opening(make_chat):
    app = make_chat()

    async def scenario(pilot):
        await until(pilot, lambda: ready(app))
        await pilot.press("ctrl+o")
        await fill(pilot, "~nobody-of-that-name/chat.json")
        await until(pilot, lambda: "no home folder is known for ~nobody" in notices(app))
        assert "unexpected" not in notices(app)

    drive(app, scenario)


def test_a_system_prompt_precedes_the_conversation(make_chat):
    app = make_chat()

    async def scenario(pilot):
        await until(pilot, lambda: ready(app))
        await app.action_system_prompt()
        await fill_long(pilot, "Be brief.")
        await until(
            pilot,
            lambda: app.workspace.conversation.system_prompt == "Be brief." and ready(app),
        )
        await ask(pilot, "hi")
        assert app.workspace.conversation.messages[0] == {"role": "system", "content": "Be brief."}

    drive(app, scenario)


def test_a_profile_needs_no_enter(make_chat, tmp_path):
    app = make_chat()
    mine = tmp_path / "mine.toml"
    mine.write_text("[thresholds]\nlow_entropy = 0.7\n")

    async def scenario(pilot):
        await until(pilot, lambda: ready(app))
        await pilot.press("f3")
        screen = app.screen
        field = screen.query_one("#profile", Input)
        field.focus()
        field.value = "absent"
        await pilot.press("ctrl+r")
        assert app.screen is screen
        assert "no profile 'absent'" in str(screen.query_one("#changes").visual)
        field.value = str(mine)
        screen.query(Slider).first().focus()
        await pilot.press("enter")
        assert app.screen is not screen
        assert app.workspace.profile.name == "mine"
        assert app.workspace.profile.thresholds.low_entropy == 0.7

    drive(app, scenario)


def test_thresholds_moved_after_a_profile_was_typed_stay(make_chat, tmp_path):
    app = make_chat()
    mine = tmp_path / "mine.toml"
    mine.write_text("[thresholds]\nlow_entropy = 0.7\n")

    async def scenario(pilot):
        await until(pilot, lambda: ready(app))
        await pilot.press("f3")
        field = app.screen.query_one("#profile", Input)
        field.focus()
        await pilot.pause()
        field.value = str(mine)
        app.screen.query_one("#slider-low_entropy", Slider).focus()
        await pilot.pause()
        await pilot.press("right", "enter")
        assert app.workspace.profile.name == "mine"
        assert app.workspace.profile.thresholds.low_entropy == 0.8

    drive(app, scenario)


def test_a_file_is_replaced_only_on_request(make_chat, tmp_path):
    app = make_chat(max_tokens=2)
    there = tmp_path / "thesis.md"
    there.write_text("mine")

    async def scenario(pilot):
        await ask(pilot, "hi")
        await pilot.press("ctrl+s")
        await fill(pilot, str(there))
        await until(pilot, lambda: isinstance(app.screen, ConfirmDialog))
        await pilot.press("escape")
        assert there.read_text() == "mine"
        await pilot.press("ctrl+s")
        await fill(pilot, str(there))
        await until(pilot, lambda: isinstance(app.screen, ConfirmDialog))
        await pilot.press("enter")
        await until(pilot, lambda: "saved" in notices(app))
        assert "hi" in there.read_text()

    drive(app, scenario)


def test_keys_that_come_right_after_save_go_to_its_dialog(make_chat, tmp_path):
    app = make_chat(max_tokens=2)
    path = tmp_path / "chat.json"

    async def scenario(pilot):
        await ask(pilot, "hi")
        app.post_message(events.Key("ctrl+s", None))
        for key in str(path):
            app.post_message(events.Key(key, key))
        app.post_message(events.Key("enter", None))
        await until(pilot, lambda: "saved" in notices(app))
        assert path.exists()
        assert app.composer.text == ""
        assert len(turns(app)) == 1

    drive(app, scenario)


def test_a_dialog_opens_no_other_dialog_and_can_be_quit(make_chat):
    app = make_chat(max_tokens=2)

    async def scenario(pilot):
        await ask(pilot, "hi")
        await pilot.press("ctrl+s")
        dialog = app.screen
        await pilot.press("ctrl+s", "ctrl+o", "ctrl+g", "f3")
        assert app.screen is dialog
        assert app.composer.text == ""
        await pilot.press("ctrl+q")
        await pilot.pause()

    drive(app, scenario)
    assert not app.is_running
