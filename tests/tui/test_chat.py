"""The chat, with a tiny model on its thread: every key does what it says."""

import json
import threading
import time

import pytest
from textual import events
from textual.widgets import Checkbox, Input, Markdown, OptionList, Select

from entropix_mlx import Profile, Session, Settings
from entropix_mlx.chat.context import Context
from entropix_mlx.chat.conversation import Conversation
from entropix_mlx.decoding import engine
from entropix_mlx.errors import ModelNotFoundError
from entropix_mlx.palette import printable
from entropix_mlx.serving.events import DuelStepsArrived
from entropix_mlx.serving.worker import Chat
from entropix_mlx.step import ChosenBy, Origin
from entropix_mlx.traces.reading import read_trace
from entropix_mlx.traces.trace import TraceFolder
from tests.conftest import make_tiny_model
from tests.tui.conftest import ask, drive, load_tiny, notices, ready, turns, until
from tests.unit.test_branching import always_branch
from tui.app import ChatApp, run_chat
from tui.screens.dialogs import AskDialog, ConfirmDialog, TextDialog
from tui.screens.duel import DuelScreen
from tui.screens.tune import Slider, TuneScreen
from tui.widgets.answer import AnswerView, TokenBlock
from tui.widgets.status import State


async def generating(pilot, steps: int = 1) -> None:
    """Wait until an answer runs and some of it is on screen."""
    app = pilot.app
    await until(pilot, lambda: app.status.state is State.GENERATING and shown_steps(app) >= steps)


def answers(app) -> int:
    return len(turns(app)[0].answers)


def shown_steps(app) -> int:
    answer = app.workspace.transcript.last_answer
    return len(answer.steps) if answer else 0


def gated(gate):
    """Return a load that waits until a gate is open."""

    def load():
        gate.wait(10)
        return load_tiny()

    return load


def test_a_conversation(make_chat):
    app = make_chat()

    async def scenario(pilot):
        await ask(pilot, "one")
        await ask(pilot, "two")
        assert [m["role"] for m in app.workspace.conversation.messages] == ["user", "assistant"] * 2
        assert shown_steps(app) == 12
        assert turns(app)[1].answer.steps == app.workspace.transcript.last_answer.steps
        assert "context" in str(app.status.render())
        assert "seed 1" in str(app.status.render())
        assert app.composer.text == ""

    drive(app, scenario)


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


def test_a_question_typed_while_the_model_loads_is_answered(make_chat):
    gate = threading.Event()
    app = make_chat(gated(gate))

    async def scenario(pilot):
        await pilot.press("h", "i", "enter")
        await pilot.press("m", "o", "r", "e", "enter")
        assert app.composer.text == "more", "the second one waits in the field"
        assert "still loading" in notices(app)
        gate.set()
        await until(pilot, lambda: ready(app) and shown_steps(app) == 12)

    drive(app, scenario)


def test_a_model_that_cannot_be_loaded_is_a_readable_message(make_chat):
    def load():
        raise ModelNotFoundError("no model 'absent': name a folder [like this]")

    app = make_chat(load)

    async def scenario(pilot):
        await until(pilot, lambda: app.status.state is State.FAILED)
        assert "no model 'absent': name a folder [like this]" in notices(app)
        assert "Ctrl+Q" in notices(app)
        await pilot.press("h", "i", "enter")
        assert app.composer.text == "hi"

    drive(app, scenario)


def test_a_question_that_waited_for_a_model_comes_back_if_there_is_none(make_chat):
    gate = threading.Event()

    def load():
        gate.wait(10)
        raise ModelNotFoundError("no model 'absent'")

    app = make_chat(load)

    async def scenario(pilot):
        await pilot.press("h", "i", "enter")
        assert app.composer.text == ""
        gate.set()
        await until(pilot, lambda: app.status.state is State.FAILED)
        assert app.composer.text == "hi"

    drive(app, scenario)


def test_an_unexpected_failure_is_a_message_too(make_chat):
    def load():
        raise RuntimeError("boom")

    app = make_chat(load)

    async def scenario(pilot):
        await until(pilot, lambda: app.status.state is State.FAILED)
        assert "unexpected RuntimeError: boom" in notices(app)

    drive(app, scenario)


def test_escape_stops_and_keeps_what_there_is(make_chat):
    app = make_chat(max_tokens=2000)

    async def scenario(pilot):
        await pilot.press("h", "i", "enter")
        await generating(pilot, 5)
        await pilot.press("escape")
        await until(pilot, lambda: ready(app))
        assert 5 <= shown_steps(app) < 2000
        before = len(turns(app))
        await pilot.press("y", "enter")
        await until(pilot, lambda: len(turns(app)) == before + 1)
        await generating(pilot)

    drive(app, scenario)


def test_a_question_that_comes_at_once_is_sent_whole(make_chat):
    """As a terminal without bracketed paste sends it; what follows it stays in the field."""
    app = make_chat()

    async def scenario(pilot):
        await until(pilot, lambda: ready(app))
        for key in (*"what?", "enter", *"and"):
            app.post_message(events.Key(key, None if key == "enter" else key))
        await until(pilot, lambda: ready(app) and shown_steps(app) == 12)
        assert turns(app)[0].question == "what?"
        assert app.composer.text == "and"
        await pilot.press("x")
        assert app.composer.text == "andx"

    drive(app, scenario)


def test_ctrl_c_stops_an_answer_too(make_chat):
    app = make_chat(max_tokens=2000)

    async def scenario(pilot):
        await pilot.press("h", "i", "enter")
        await generating(pilot)
        await pilot.press("ctrl+c")
        await until(pilot, lambda: ready(app))
        assert shown_steps(app) < 2000
        await pilot.press("ctrl+c")
        await until(pilot, lambda: "quit" in notices(app))

    drive(app, scenario)


def test_a_fork_with_the_token_that_stands_there_is_none(make_chat):
    app = make_chat(sampler="greedy")

    async def scenario(pilot):
        await ask(pilot, "hi")
        await pilot.press("tab", "left", "f")
        await until(pilot, lambda: "stands there already" in notices(app))
        assert answers(app) == 1

    drive(app, scenario)


def test_a_new_question_is_in_sight_wherever_one_had_scrolled_to(make_chat):
    app = make_chat(max_tokens=350)

    async def scenario(pilot):
        await ask(pilot, "one")
        assert app.workspace.transcript.max_scroll_y > 0
        app.workspace.transcript.release_anchor()  # as the wheel does
        app.workspace.transcript.scroll_home(animate=False)
        await until(pilot, lambda: app.workspace.transcript.scroll_y == 0)
        await ask(pilot, "two")
        assert app.workspace.transcript.scroll_y == app.workspace.transcript.max_scroll_y

    drive(app, scenario, size=(50, 16))


def test_escape_stops_within_a_fork(make_chat, monkeypatch):
    monkeypatch.setattr("entropix_mlx.decoding.branching.sentence_end", lambda text, known: None)
    depth = 1000
    app = make_chat(max_tokens=2000, profile=always_branch(depth=depth, width=2))

    async def scenario(pilot):
        await pilot.press("h", "i", "enter")
        await pilot.pause(0.5)  # the prompt is short, and the fork takes seconds
        await pilot.press("escape")
        await until(pilot, lambda: ready(app))

    drive(app, scenario)
    fork = turns(app)[0].answer.steps[0].branch
    assert len(fork.rollouts[0].tokens) < depth


def test_enter_while_an_answer_runs_keeps_the_text(make_chat):
    app = make_chat(max_tokens=2000)

    async def scenario(pilot):
        await pilot.press("h", "i", "enter")
        await generating(pilot)
        await pilot.press("n", "enter")
        assert app.composer.text == "n"
        assert "Escape stops it" in notices(app)
        await pilot.press("escape")

    drive(app, scenario)


def test_regenerate_and_switch_between_answers(make_chat):
    app = make_chat()

    async def scenario(pilot):
        await ask(pilot, "hi")
        first = app.workspace.transcript.last_answer.text
        await pilot.press("ctrl+r")
        await until(pilot, lambda: ready(app) and answers(app) == 2)
        second = app.workspace.transcript.last_answer.text
        assert first != second
        await pilot.press("tab")
        await pilot.press("left_square_bracket")
        await until(pilot, lambda: app.workspace.transcript.last_answer.text == first)
        await pilot.press("right_square_bracket")
        await until(pilot, lambda: app.workspace.transcript.last_answer.text == second)

    drive(app, scenario)


def test_fork_goes_on_from_the_token_under_the_cursor(make_chat):
    app = make_chat()

    async def scenario(pilot):
        await ask(pilot, "hi")
        old = list(app.workspace.transcript.last_answer.steps)
        await pilot.press("tab", "left", *["left"] * 6, "down", "down")
        index, wanted = app.workspace.transcript.cursor, app.workspace.inspector.alternative.token
        await pilot.press("f")
        await until(pilot, lambda: ready(app) and answers(app) == 2)
        new = app.workspace.transcript.last_answer.steps
        assert new[:index] == old[:index]
        assert new[index].token == wanted
        assert new[index].origin is Origin.CHOSEN
        assert turns(app)[0].answers[0].steps == old

    drive(app, scenario)


def test_edit_and_resend(make_chat):
    app = make_chat()

    async def scenario(pilot):
        await ask(pilot, "one")
        await ask(pilot, "two")
        await pilot.press("ctrl+g")
        assert app.composer.text == "two"
        await pilot.press("x", "enter")
        await until(pilot, lambda: app.workspace.conversation.messages[2]["content"] == "twox")
        await until(pilot, lambda: ready(app) and shown_steps(app) == 12)
        assert len(turns(app)) == 2

    drive(app, scenario)


def test_a_refused_question_comes_back_into_the_field(make_chat):
    app = make_chat()
    long = "x" * 5000

    async def scenario(pilot):
        await ask(pilot, "hi")
        app.composer.text = long
        await pilot.press("enter")
        await until(pilot, lambda: "shorten the message" in notices(app))
        assert app.composer.text == long
        assert len(turns(app)) == 1

    drive(app, scenario)


def test_a_refused_edit_comes_back_as_an_edit(make_chat):
    app = make_chat()

    async def scenario(pilot):
        await ask(pilot, "hi")
        await pilot.press("ctrl+g")
        composer = app.composer
        composer.text = "x" * 5000
        await pilot.press("enter")
        await until(pilot, lambda: composer.text == "x" * 5000)
        composer.text = "ho"
        await pilot.press("enter")
        await until(pilot, lambda: ready(app) and composer.text == "")
        await until(pilot, lambda: [t.question for t in turns(app)] == ["ho"])

    drive(app, scenario)


def test_a_refused_question_does_not_overwrite_what_was_typed_since(make_chat):
    gate = threading.Event()
    app = make_chat(gated(gate), sampler="greedy", temperature=0.5)

    async def scenario(pilot):
        await pilot.press("h", "i", "enter", "m", "o", "r", "e")
        gate.set()
        await until(pilot, lambda: "takes no temperature" in notices(app))
        assert app.composer.text == "more"

    drive(app, scenario)


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


def test_an_edit_outlives_another_system_prompt(make_chat):
    app = make_chat(max_tokens=2)

    async def scenario(pilot):
        await ask(pilot, "one")
        await ask(pilot, "two")
        await pilot.press("ctrl+g")
        await app.action_system_prompt()
        await fill(pilot, "Be brief.")
        await until(
            pilot,
            lambda: ready(app) and app.workspace.conversation.system_prompt,
        )
        app.composer.focus()
        await pilot.press("x", "enter")
        await until(pilot, lambda: [t.question for t in turns(app)] == ["one", "twox"])
        await until(pilot, lambda: ready(app))
        assert "there is no" not in notices(app)

    drive(app, scenario)


def test_lines_in_the_composer(make_chat):
    app = make_chat()

    async def scenario(pilot):
        await pilot.press("a", "ctrl+j", "b", "shift+enter", "c")
        assert app.composer.text == "a\nb\nc"
        await pilot.press("enter")
        await until(pilot, lambda: ready(app) and shown_steps(app) == 12)
        assert turns(app)[0].question == "a\nb\nc"

    drive(app, scenario)


async def fill(pilot, text: str) -> None:
    """Answer a text dialog."""
    await until(pilot, lambda: isinstance(pilot.app.screen, TextDialog))
    pilot.app.screen.query_one(Input).value = text
    await pilot.press("enter")
    await pilot.pause()


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
        await until(pilot, lambda: "there is no home folder as in ~nobody" in notices(app))
        assert "unexpected" not in notices(app)

    drive(app, scenario)


def test_a_system_prompt_precedes_the_conversation(make_chat):
    app = make_chat()

    async def scenario(pilot):
        await until(pilot, lambda: ready(app))
        await app.action_system_prompt()
        await fill(pilot, "Be brief.")
        await until(
            pilot,
            lambda: app.workspace.conversation.system_prompt == "Be brief." and ready(app),
        )
        await ask(pilot, "hi")
        assert app.workspace.conversation.messages[0] == {"role": "system", "content": "Be brief."}

    drive(app, scenario)


def test_a_threshold_recolours_and_then_regenerates(make_chat):
    app = make_chat()

    async def scenario(pilot):
        await ask(pilot, "hi")
        answer = app.workspace.transcript.last_answer
        decided = list(answer.strategies)
        await pilot.press("f3")
        assert isinstance(app.screen, TuneScreen)
        app.screen.query_one("#slider-resample_min_entropy", Slider).focus()
        await pilot.press(*["shift+right"] * 4)
        assert answer.strategies != decided, "without the model"
        said = str(app.screen.query_one("#changes").visual)
        changed = sum(a != b for a, b in zip(decided, answer.strategies, strict=True))
        assert said == f"{changed} of 12 tokens would change"
        app.screen.query_one("#sampler", Select).value = "min_p"
        app.screen.query_one("#seed", Input).value = "42"
        app.screen.query_one("#think", Checkbox).value = False
        await pilot.press("ctrl+r")
        await until(pilot, lambda: ready(app) and answers(app) == 2)
        assert turns(app)[0].answer.seed == 43
        assert app.workspace.profile.thresholds.resample_min_entropy == 8.0
        assert app.workspace.profile.think.max_insertions == 0
        assert {s.strategy for s in app.workspace.transcript.last_answer.steps} == {"sample"}

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


def test_settings_wait_for_the_model(make_chat):
    gate = threading.Event()
    profile = Profile.load().replace({"name": "mine", "think": {"max_insertions": 0}})
    app = make_chat(gated(gate), profile=profile)

    async def scenario(pilot):
        await pilot.press("f3")
        assert not isinstance(app.screen, TuneScreen)
        assert "still loading" in notices(app)
        gate.set()
        await until(pilot, lambda: ready(app))
        await pilot.press("f3", "enter")
        await pilot.pause()
        assert app.workspace.profile == profile

    drive(app, scenario)


def test_what_waits_for_the_model_need_not_be_a_question(make_chat):
    gate = threading.Event()
    app = make_chat(gated(gate))

    async def scenario(pilot):
        await pilot.press("ctrl+n")
        assert "question" not in notices(app)
        assert "as soon as the model is loaded" in notices(app)
        gate.set()
        await until(pilot, lambda: ready(app))

    drive(app, scenario)


@pytest.mark.parametrize("leaving", ["escape", "ctrl+z"])
def test_settings_can_be_forgotten_and_mistakes_are_told(make_chat, leaving):
    app = make_chat()

    async def scenario(pilot):
        await ask(pilot, "hi")
        answer = app.workspace.transcript.last_answer
        decided = list(answer.strategies)
        await pilot.press("f3")
        screen = app.screen
        screen.query_one("#seed", Input).value = "many"
        await pilot.press("enter")
        assert app.screen is screen
        assert "seed must be a number, not 'many'" in str(screen.query_one("#changes").visual)
        screen.query_one("#profile", Input).focus()
        screen.query_one("#profile", Input).value = "absent"
        await pilot.press("enter")
        assert "no profile 'absent'" in str(screen.query_one("#changes").visual)
        screen.query_one("#slider-resample_min_entropy", Slider).focus()
        await pilot.press(*["shift+right"] * 4, leaving)
        assert app.screen is not screen
        assert answer.strategies == decided
        assert app.workspace.profile == Profile.load()

    drive(app, scenario)


def test_the_sampler_asks(make_chat):
    profile = always_branch(ask_margin=1e6, width=3)
    app = make_chat(ask=True, profile=profile)

    async def scenario(pilot):
        await until(pilot, lambda: ready(app))
        await pilot.press("h", "i", "enter")
        await until(pilot, lambda: isinstance(app.screen, AskDialog))
        options = app.screen.query_one(OptionList)
        assert options.option_count == 3
        assert "score" in str(options.get_option_at_index(0).prompt)
        await pilot.press("down", "enter")
        for _ in range(12):
            await pilot.pause(0.1)
            if isinstance(app.screen, AskDialog):
                await pilot.press("escape")
        await until(pilot, lambda: ready(app))
        branch = app.workspace.transcript.last_answer.steps[0].branch
        assert branch.chosen_by is ChosenBy.USER
        assert app.workspace.transcript.last_answer.steps[0].origin is Origin.CHOSEN

    drive(app, scenario)


def test_a_duel_marks_where_the_answers_part(make_chat):
    app = make_chat(max_tokens=8)

    async def scenario(pilot):
        await ask(pilot, "hi")
        await pilot.press("f4")
        screen = app.screen
        assert isinstance(screen, DuelScreen)
        await until(pilot, lambda: "part" in str(screen.query_one("#divergence").visual))
        left, right = screen.query(AnswerView)
        assert len(left.steps) == len(right.steps) == 8
        index = next(i for i in range(8) if left.steps[i].token != right.steps[i].token)
        assert f"at token {index}" in str(screen.query_one("#divergence").visual)
        assert {s.strategy for s in right.steps} == {"argmax"}
        screen.query_one("#sampler-1", Select).value = "entropix"
        await until(pilot, lambda: "the same text" in str(screen.query_one("#divergence").visual))
        await pilot.press("escape")
        assert len(turns(app)) == 1, "a duel is no turn"
        await until(pilot, lambda: ready(app))
        await ask(pilot, "on")

    drive(app, scenario)


def prompts_of(monkeypatch) -> list[str]:
    """Return a list that fills with the prompts of all sessions."""
    prompts = []
    original = Context._encode

    def encode(context, conversation):
        prompt = original(context, conversation)
        prompts.append(context._tokenizer.decode(prompt))
        return prompt

    monkeypatch.setattr(Context, "_encode", encode)
    return prompts


def test_a_duel_asks_the_last_question_in_its_own_place(make_chat, monkeypatch):
    app = make_chat(max_tokens=4)
    prompts = prompts_of(monkeypatch)

    async def scenario(pilot):
        await ask(pilot, "one")
        await ask(pilot, "two")
        asked = prompts[-1]
        await pilot.press("f4")
        await until(pilot, lambda: str(app.screen.query_one("#divergence").visual) != "…")
        assert prompts[-2:] == [asked] * 2
        await pilot.press("escape")
        await until(pilot, lambda: ready(app))
        await pilot.press("o", "n", "f4")
        await until(pilot, lambda: str(app.screen.query_one("#divergence").visual) != "…")
        assert prompts[-1].startswith(asked)
        assert "user: on" in prompts[-1]

    drive(app, scenario)


def test_leaving_a_duel_stops_both_sides(make_chat, monkeypatch):
    app = make_chat(max_tokens=2000)
    prompts = prompts_of(monkeypatch)

    async def scenario(pilot):
        await until(pilot, lambda: ready(app))
        await pilot.press("h", "i", "f4")
        await until(pilot, lambda: app.screen.query(AnswerView).first().steps)
        await pilot.press("escape")
        await until(pilot, lambda: ready(app))
        assert len(prompts) == 1, "the second side never began"

    drive(app, scenario)


def test_leaving_a_duel_stops_a_prefill(make_chat, monkeypatch):
    app = make_chat(max_tokens=1)
    reading, gate, chunks = threading.Event(), threading.Event(), []
    original = engine.Engine.prefill

    def prefill(self, text, tokens):
        chunks.append(len(tokens))
        reading.set()
        gate.wait(10)
        original(self, text, tokens)

    monkeypatch.setattr(engine.Engine, "prefill", prefill)

    async def scenario(pilot):
        await until(pilot, lambda: ready(app))
        app.composer.text = "x" * 3000
        await pilot.press("f4")
        await until(pilot, reading.is_set)
        await pilot.press("escape")
        gate.set()
        await until(pilot, lambda: ready(app))
        assert len(chunks) == 1

    drive(app, scenario)


def test_an_unexpected_failure_in_a_duel_is_a_message(make_chat, monkeypatch):
    app = make_chat(max_tokens=4)

    async def scenario(pilot):
        await ask(pilot, "hi")
        with monkeypatch.context() as patched:
            patched.setattr(Session, "send", lambda *_, **__: 1 / 0)
            await pilot.press("f4")
            await until(pilot, lambda: "unexpected ZeroDivisionError" in notices(app))
        await pilot.press("escape")
        await until(pilot, lambda: ready(app))
        await ask(pilot, "on")

    drive(app, scenario)


def test_steps_that_arrive_while_a_duel_begins_anew_are_dropped(make_chat, monkeypatch):
    app = make_chat(max_tokens=4)

    async def scenario(pilot):
        await ask(pilot, "hi")
        steps = list(app.workspace.transcript.last_answer.steps)
        await pilot.press("f4")
        screen = app.screen
        await until(pilot, lambda: str(screen.query_one("#divergence").visual) != "…")
        container, cancel = screen.query_one("#side-0"), screen._cancel
        original = container.remove_children

        async def remove_children():
            await original()
            screen.receive(DuelStepsArrived(cancel, 0, steps))

        monkeypatch.setattr(container, "remove_children", remove_children)
        screen.query_one("#sampler-1", Select).value = "min_p"
        await until(pilot, lambda: screen._cancel is not cancel)
        await until(pilot, lambda: str(screen.query_one("#divergence").visual) != "…")
        assert [len(answer.steps) for answer in screen.query(AnswerView)] == [4, 4]

    drive(app, scenario)


@pytest.mark.parametrize("quitting", ["ctrl+q", ""])
def test_the_end_of_the_app_waits_for_the_model_thread(make_chat, monkeypatch, quitting):
    app = make_chat(max_tokens=3000)
    close = Session.close

    def slow_close(session):
        time.sleep(0.5)
        close(session)

    monkeypatch.setattr(Session, "close", slow_close)

    async def scenario(pilot):
        await pilot.press("h", "i", "enter")
        await generating(pilot)
        await pilot.press(*filter(None, [quitting]))

    drive(app, scenario)
    assert not app.link._worker._thread.is_alive()


def test_the_end_of_the_app_does_not_wait_for_a_model(make_chat):
    gate = threading.Event()
    app = make_chat(gated(gate))

    async def scenario(pilot):
        await pilot.press("ctrl+q")

    began = time.monotonic()
    drive(app, scenario)
    took = time.monotonic() - began
    gate.set()
    app.link._worker._thread.join()
    assert took < 4


def test_a_mistake_in_the_settings_is_a_message(make_chat):
    app = make_chat(sampler="greedy", temperature=0.5)

    async def scenario(pilot):
        await until(pilot, lambda: ready(app))
        await pilot.press("h", "i", "enter")
        await until(pilot, lambda: "takes no temperature" in notices(app))
        assert ready(app)

    drive(app, scenario)


def test_keys_before_anything_was_asked(make_chat):
    app = make_chat()

    async def scenario(pilot):
        await until(pilot, lambda: ready(app))
        await pilot.press("ctrl+r", "ctrl+g", "f4", "ctrl+s", "tab", "left", "f", "g", "y", "enter")
        assert "nothing was asked yet" in notices(app)
        assert ready(app)

    drive(app, scenario)


def test_everything_is_in_the_palette(make_chat):
    app = make_chat()

    async def scenario(pilot):
        titles = {command.title for command in app.get_system_commands(app.screen)}
        assert titles >= {
            "New chat", "Answer again", "Edit question", "Settings", "Duel", "Save", "Open",
            "System prompt", "Help", "Gauges", "Markdown", "Glyphs", "Copy answer", "Theme",
        }  # fmt: skip
        identified = [b for b in [*app.BINDINGS, *app.workspace.transcript.BINDINGS] if not b.id]
        assert not identified, "a binding without an id cannot be remapped"

    drive(app, scenario)


@pytest.mark.parametrize(
    ("sampler", "temperature", "told"),
    [("entropix", "-3", "temperature must be"), ("greedy", "1", "takes no temperature")],
)
def test_settings_that_no_answer_could_use_are_refused(make_chat, sampler, temperature, told):
    app = make_chat()

    async def scenario(pilot):
        await until(pilot, lambda: ready(app))
        await pilot.press("f3")
        screen = app.screen
        screen.query_one("#sampler", Select).value = sampler
        screen.query_one("#temperature", Input).value = temperature
        await pilot.press("enter")
        assert app.screen is screen
        assert told in str(screen.query_one("#changes").visual)

    drive(app, scenario)


def test_no_token_stays_recoloured_after_the_settings(make_chat):
    app = make_chat()

    async def scenario(pilot):
        await ask(pilot, "hi")
        answer = app.workspace.transcript.last_answer
        decided = list(answer.strategies)
        await pilot.press("f3")
        app.screen.query_one("#slider-resample_min_entropy", Slider).focus()
        await pilot.press(*["shift+right"] * 4)
        assert answer.strategies != decided
        await pilot.press("enter")
        assert answer.strategies == decided
        assert app.workspace.profile.thresholds.resample_min_entropy == 8.0

    drive(app, scenario)


def test_a_threshold_beyond_the_usual_scale_is_not_moved_down(make_chat):
    far = Profile.load().replace({"thresholds": {"resample_min_varentropy": 16.57}})
    app = make_chat(profile=far)

    async def scenario(pilot):
        await until(pilot, lambda: ready(app))
        await pilot.press("f3")
        slider = app.screen.query_one("#slider-resample_min_varentropy", Slider)
        slider.focus()
        await pilot.press("right")
        assert slider.value == 16.67
        await pilot.press(*["shift+right"] * 5)
        assert slider.value == 20
        await pilot.press("left")
        assert slider.value == 19.9

    drive(app, scenario)


def test_a_duel_loses_nothing_while_a_dialog_lies_over_it(make_chat):
    app = make_chat(max_tokens=30)

    async def scenario(pilot):
        await ask(pilot, "hi")
        await pilot.press("f4")
        duel = app.screen
        assert isinstance(duel, DuelScreen)
        await pilot.press("f1")
        assert app.screen is not duel
        await until(pilot, lambda: "part" in str(duel.query_one("#divergence").visual))
        assert app.screen is not duel, "all of it came while the help was on top"
        assert [len(answer.steps) for answer in duel.query(AnswerView)] == [30, 30]

    drive(app, scenario)


def test_the_context_counts_the_conversation(make_chat, tmp_path):
    app = make_chat()

    async def scenario(pilot):
        await ask(pilot, "one")
        await ask(pilot, "two")
        used = app.status.context_used
        asked = len(
            "".join(f"{m['role']}: {m['content']}\n" for m in app.workspace.conversation.asked)
        )
        assert asked <= used - 12 <= asked + 20, "a token a byte, and what the template adds"
        app.save(str(tmp_path / "chat.json"))
        await pilot.press("ctrl+n")
        await until(pilot, lambda: ready(app) and not turns(app))
        assert app.status.context_used == 0
        assert "context 0/4096" in str(app.status.render())
        await ask(pilot, "three")
        assert app.status.context_used < used
        app.open(str(tmp_path / "chat.json"))
        await until(pilot, lambda: ready(app) and len(turns(app)) == 2)
        assert app.status.context_used == used

    drive(app, scenario)


def test_the_compact_gauges_follow(make_chat):
    app = make_chat()

    async def scenario(pilot):
        line = app.query_one("#compact")
        await ask(pilot, "hi")
        await until(pilot, lambda: "–" not in str(line.visual))
        await pilot.press("f2")
        await pilot.pause()
        assert line.visual.cell_length <= line.content_size.width < 40
        await pilot.press("f2")
        await pilot.pause()
        assert line.visual.cell_length > 40
        await pilot.press("ctrl+n")
        await until(pilot, lambda: ready(app) and not turns(app))
        assert str(line.visual).count("–") == 2

    drive(app, scenario, size=(80, 24))


def test_markdown_follows_a_running_answer(make_chat):
    app = make_chat(max_tokens=3000)

    async def scenario(pilot):
        await pilot.press("h", "i", "enter")
        await generating(pilot, 3)
        await pilot.press("ctrl+t")
        seen = len(app.query_one(Markdown).source)
        await until(pilot, lambda: len(app.query_one(Markdown).source) > seen + 20)
        assert not any(block.display for block in app.query(TokenBlock))
        await pilot.press("escape")
        await until(pilot, lambda: ready(app))
        answer = app.workspace.transcript.last_answer
        assert app.query_one(Markdown).source == printable(answer.text)

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


def test_leaving_while_the_model_loads_skips_the_end_of_the_interpreter(monkeypatch):
    gate, left = threading.Event(), []

    async def quit_at_once(pilot):
        await pilot.press("ctrl+q")

    monkeypatch.setattr(ChatApp, "run", lambda app: drive(app, quit_at_once))
    monkeypatch.setattr("os._exit", left.append)
    run_chat(Chat("slow", gated(gate), Settings()))
    gate.set()
    assert left == [0]


def test_leaving_a_chat_is_the_ordinary_end(monkeypatch):
    left = []

    async def quit_when_ready(pilot):
        await until(pilot, lambda: ready(pilot.app))
        await pilot.press("ctrl+q")

    monkeypatch.setattr(ChatApp, "run", lambda app: drive(app, quit_when_ready))
    monkeypatch.setattr("os._exit", left.append)
    run_chat(Chat("tiny", load_tiny, Settings()))
    assert not left
