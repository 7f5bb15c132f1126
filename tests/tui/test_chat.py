"""The chat, with a tiny model on its thread: keys and commands do what they say."""

import threading

import pytest
from textual.widgets import OptionList

from entropix_mlx.errors import ModelNotFoundError
from entropix_mlx.step import ChosenBy, Origin
from entropix_mlx.tui.composer.status import State
from entropix_mlx.tui.screens.picker import Picker
from tests.answer.test_forks import always_branch
from tests.tui.conftest import (
    answers,
    ask,
    chatting,
    gated,
    generating,
    idle,
    notices,
    ready,
    running,
    send,
    shown_steps,
    turns,
    until,
)


async def test_a_conversation_and_its_context(make_chat, tmp_path):
    app = make_chat()
    saved = str(tmp_path / "chat.json")
    async with running(app) as pilot:
        await ask(pilot, "one")
        await ask(pilot, "two")
        conversation = app.workspace.conversation
        assert [m["role"] for m in conversation.messages] == ["user", "assistant"] * 2
        assert shown_steps(app) == 12
        assert turns(app)[1].answer.steps == app.workspace.transcript.last_answer.steps
        assert "seed 1" in str(app.status.render())
        assert app.composer.text == ""
        used = app.status.context_used
        asked = len("".join(f"{m['role']}: {m['content']}\n" for m in conversation.prompt_messages))
        assert asked <= used - 12 <= asked + 20, "a token a byte, and the template"
        app.files.save(saved)
        await pilot.press("ctrl+n")
        await until(pilot, lambda: ready(app) and not turns(app))
        assert "context 0/4096" in str(app.status.render())
        app.files.open(saved)
        await until(pilot, lambda: ready(app) and len(turns(app)) == 2)
        assert app.status.context_used == used


async def test_an_unsure_answer_is_reported_with_advice(make_chat):
    async with chatting(
        make_chat, "one", changes={"abstain": {"score": "mean_logprob", "threshold": 0.0}}
    ) as (app, _pilot):
        assert "mean log p" in notices(app)
        assert "check it" in notices(app)


async def test_a_question_typed_while_the_model_loads_is_answered(make_chat):
    gate = threading.Event()
    app = make_chat(gated(gate))
    async with running(app) as pilot:
        await send(pilot, "hi")
        assert "once the model is loaded" in notices(app)
        await send(pilot, "more")
        assert app.composer.text == "more", "the second one waits in the field"
        assert "still loading" in notices(app)
        gate.set()
        await until(pilot, lambda: ready(app) and shown_steps(app) == 12)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ModelNotFoundError("no model 'absent': name a folder [like this]"), "folder [like this]"),
        (RuntimeError("boom"), "unexpected RuntimeError: boom"),
    ],
)
async def test_a_model_that_cannot_be_loaded_is_a_message_and_gives_the_question_back(
    make_chat, error, message
):
    gate = threading.Event()

    def load():
        gate.wait(10)
        raise error

    app = make_chat(load)
    async with running(app) as pilot:
        await send(pilot, "hi")
        assert app.composer.text == ""
        gate.set()
        await until(pilot, lambda: app.status.state is State.FAILED)
        assert message in notices(app)
        assert "Ctrl+Q" in notices(app)
        assert app.composer.text == "hi"
        await pilot.press("enter")
        assert app.composer.text == "hi"


async def test_escape_and_ctrl_c_stop_an_answer_and_keep_it(make_chat):
    app = make_chat(max_tokens=2000)
    async with running(app) as pilot:
        for number, key in enumerate(["escape", "ctrl+c"], 1):
            await send(pilot, "hi")
            await until(pilot, lambda number=number: len(turns(app)) == number)
            await generating(pilot, 5)
            await send(pilot, "n")
            assert app.composer.text == "n", "a question waits in the field"
            assert "Escape stops it" in notices(app)
            app.composer.text = ""
            await pilot.press(key)
            await idle(pilot)
            assert 5 <= shown_steps(app) < 2000
        await pilot.press("ctrl+c")
        await until(pilot, lambda: "quit" in notices(app))


async def test_regenerate_and_switch_between_answers(make_chat):
    app = make_chat()

    def text() -> str:
        return app.workspace.transcript.last_answer.text

    async with running(app) as pilot:
        await ask(pilot, "hi")
        first = text()
        await pilot.press("ctrl+r")
        await until(pilot, lambda: ready(app) and answers(app) == 2)
        second = text()
        assert first != second
        await pilot.press("tab", "left_square_bracket")
        await until(pilot, lambda: text() == first)
        await pilot.press("right_square_bracket")
        await until(pilot, lambda: text() == second)


async def test_an_answer_continues_from_the_token_with_the_cursor(make_chat):
    app = make_chat(temperature=5.0)  # the tokens are not the most probable ones
    inspector = app.workspace.inspector
    async with running(app) as pilot:
        await ask(pilot, "hi")
        old = list(app.workspace.last_steps)
        await pilot.press("tab", "home")
        for _ in range(4):
            await pilot.press("enter")
            assert "an alternative first" in notices(app)
            await pilot.press("right")
        assert answers(app) == 1
        index = app.workspace.transcript.cursor
        await pilot.press("down")
        while not inspector.chosen:
            await pilot.press("up")
        (token,) = inspector.tokens
        await pilot.press("enter")
        await until(pilot, lambda: ready(app) and answers(app) == 2)
        new = app.workspace.last_steps
        assert new[:index] == old[:index]
        assert (new[index].token, new[index].origin) == (token, Origin.CHOSEN)
        assert turns(app)[0].answers[0].steps == old


async def test_an_older_answer_continues_and_its_turns_come_back_with_it(make_chat):
    app = make_chat(max_tokens=4)
    transcript, inspector = app.workspace.transcript, app.workspace.inspector
    async with running(app) as pilot:
        for question in ("one", "two"):
            await ask(pilot, question)
        old = turns(app)[0].answer
        await pilot.press("tab", "ctrl+e", *["left"] * 4)
        assert (transcript.turn, transcript.cursor) == (0, 3), "on into the answer before"
        await pilot.press("right")
        assert (transcript.turn, transcript.cursor) == (1, 0)
        await pilot.press("left", "left", "down")
        while not inspector.chosen:
            await pilot.press("down")
        (token,) = inspector.tokens
        await pilot.press("enter")
        await until(pilot, lambda: ready(app) and answers(app) == 2)
        assert len(turns(app)) == 1
        assert turns(app)[0].answer.steps[2].token == token
        await pilot.press("left_square_bracket")
        await until(pilot, lambda: ready(app) and len(turns(app)) == 2)
        assert turns(app)[0].answer.steps == old.steps
        assert [turn.question for turn in turns(app)] == ["one", "two"]


async def test_enter_continues_with_a_losing_branch(make_chat):
    async with chatting(make_chat, "hi", max_tokens=6, profile=always_branch(depth=4)) as (
        app,
        pilot,
    ):
        (step, *_) = app.workspace.last_steps
        lost = next(n for n in range(len(step.fork.branches)) if n != step.fork.winner)
        await pilot.press("tab", "home", *["down"] * len(step.top_logprobs))
        tokens = app.workspace.inspector.tokens
        assert tokens == step.fork.branches[lost].tokens
        await pilot.press("enter")
        await until(pilot, lambda: ready(app) and answers(app) == 2)
        chosen = app.workspace.last_steps[: len(tokens)]
        assert tuple(step.token for step in chosen) == tokens
        assert {step.origin for step in chosen} == {Origin.CHOSEN}


async def test_the_user_chooses_a_branch(make_chat):
    async with chatting(
        make_chat, ask=True, max_tokens=4, profile=always_branch(ask_margin=1e6, width=3)
    ) as (app, pilot):
        await send(pilot, "hi")
        await until(pilot, lambda: isinstance(app.screen, Picker))
        options = app.screen.query_one(OptionList)
        assert options.option_count == 3
        assert "the first" in str(options.get_option_at_index(0).prompt)
        assert " nats" in str(options.get_option_at_index(1).prompt)
        await pilot.press("down", "enter")
        while not ready(app):
            await pilot.pause(0.01)
            if isinstance(app.screen, Picker):
                await pilot.press("escape")
        first = app.workspace.last_steps[0]
        assert (first.fork.chosen_by, first.origin) == (ChosenBy.USER, Origin.CHOSEN)


async def test_a_question_is_edited_and_a_refused_one_comes_back(make_chat):
    app = make_chat()
    long = "x" * 5000
    async with running(app) as pilot:
        await ask(pilot, "one")
        app.composer.text = long
        await pilot.press("enter")
        await until(pilot, lambda: "shorten the message" in notices(app))
        assert app.composer.text == long
        assert len(turns(app)) == 1
        app.composer.text = ""
        await ask(pilot, "two")
        await pilot.press("tab", "e")
        assert app.composer.text == "two"
        app.composer.text = long
        await pilot.press("enter")
        await until(pilot, lambda: ready(app) and app.composer.text == long)
        app.composer.text = "2x"
        await pilot.press("enter")
        await until(pilot, lambda: [turn.question for turn in turns(app)] == ["one", "2x"])


async def test_the_system_prompt_is_the_first_message(make_chat):
    async with chatting(make_chat, "one", max_tokens=2) as (app, pilot):
        await pilot.press("ctrl+y")
        await pilot.press(*"Brief!", "ctrl+s")
        await until(pilot, lambda: ready(app) and app.workspace.conversation.system_prompt)
        assert app.workspace.conversation.messages[0]["content"] == "Brief!"
