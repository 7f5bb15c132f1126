"""Two samplers side by side, in the chat with a tiny model."""

import threading

from textual.widgets import Select

from entropix_mlx.backends.events import DuelStepsArrived
from entropix_mlx.chat.session import Context
from entropix_mlx.engine import forward
from tests.tui.conftest import ask, drive, notices, ready, turns, until
from tests.tui.helpers import prompts_of
from tui.screens.duel import DuelScreen
from tui.transcript.answer import AnswerView


def test_a_duel_marks_where_the_answers_part(make_chat):
    app = make_chat(max_tokens=8)

    async def scenario(pilot):
        await ask(pilot, "hi")
        await pilot.press("f4")
        screen = app.screen
        assert isinstance(screen, DuelScreen)
        await until(pilot, lambda: "sampler" in str(screen.query_one("#divergence").visual))
        left, right = screen.query(AnswerView)
        assert len(left.steps) == len(right.steps) == 8
        index = next(i for i in range(8) if left.steps[i].token != right.steps[i].token)
        assert f"at token {index}" in str(screen.query_one("#divergence").visual)
        assert {s.strategy for s in right.steps} == {"argmax"}
        screen.query_one("#sampler-1", Select).value = "entropix"
        await until(pilot, lambda: "the same text\n" in str(screen.query_one("#divergence").visual))
        await pilot.press("escape")
        assert len(turns(app)) == 1, "a duel is no turn"
        await until(pilot, lambda: ready(app))
        await ask(pilot, "on")

    drive(app, scenario)


def test_a_duel_asks_the_last_question_in_its_own_place(make_chat, monkeypatch):
    app = make_chat(max_tokens=4)
    prompts = prompts_of(monkeypatch)

    async def scenario(pilot):
        await ask(pilot, "one")
        await ask(pilot, "two")
        asked = prompts[-1]
        await pilot.press("f4")
        await until(
            pilot, lambda: not str(app.screen.query_one("#divergence").visual).endswith("…")
        )
        assert prompts[-2:] == [asked] * 2
        await pilot.press("escape")
        await until(pilot, lambda: ready(app))
        await pilot.press("o", "n", "f4")
        await until(
            pilot, lambda: not str(app.screen.query_one("#divergence").visual).endswith("…")
        )
        assert prompts[-1].startswith(asked)
        assert "user: on" in prompts[-1]

    drive(app, scenario)


def test_leaving_a_duel_stops_both_sides(make_chat):
    app = make_chat(max_tokens=2000)

    async def scenario(pilot):
        await until(pilot, lambda: ready(app))
        await pilot.press("h", "i", "f4")
        sides = list(app.screen.query(AnswerView))
        await until(pilot, lambda: all(side.steps for side in sides))
        await pilot.press("escape")
        await until(pilot, lambda: ready(app))
        assert all(len(side.steps) < 2000 for side in sides)

    drive(app, scenario)


def test_leaving_a_duel_stops_a_prefill(make_chat, monkeypatch):
    app = make_chat(max_tokens=1)
    reading, gate, chunks = threading.Event(), threading.Event(), []
    original = forward.Engine.prefill

    def prefill(self, text, tokens):
        chunks.append(len(tokens))
        reading.set()
        gate.wait(10)
        original(self, text, tokens)

    monkeypatch.setattr(forward.Engine, "prefill", prefill)

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
            patched.setattr(Context, "fit", lambda *_: 1 / 0)
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
        await until(pilot, lambda: not str(screen.query_one("#divergence").visual).endswith("…"))
        container, cancel = screen.query_one("#side-0"), screen._cancel
        original = container.remove_children

        async def remove_children():
            await original()
            screen.receive(DuelStepsArrived(cancel, 0, steps))

        monkeypatch.setattr(container, "remove_children", remove_children)
        screen.query_one("#sampler-1", Select).value = "min_p"
        await until(pilot, lambda: screen._cancel is not cancel)
        await until(pilot, lambda: not str(screen.query_one("#divergence").visual).endswith("…"))
        assert [len(answer.steps) for answer in screen.query(AnswerView)] == [4, 4]

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
        await until(pilot, lambda: "sampler" in str(duel.query_one("#divergence").visual))
        assert app.screen is not duel, "all of it came while the help was on top"
        assert [len(answer.steps) for answer in duel.query(AnswerView)] == [30, 30]

    drive(app, scenario)


def test_the_keys_of_the_chat_rest_during_a_duel(make_chat):
    app = make_chat(max_tokens=3)

    async def scenario(pilot):
        await ask(pilot, "hi")
        await pilot.press("f4")
        duel = app.screen
        named = {active.binding.id for active in duel.active_bindings.values()}
        assert "duel.left" in named
        assert not {name for name in named if name and name.startswith("chat.")}
        await pilot.press("f4", "f3", "f5", "f6", "ctrl+s", "ctrl+l", "ctrl+n")
        assert app.screen is duel
        await pilot.press("escape")
        assert len(turns(app)) == 1

    drive(app, scenario)


def test_a_backend_without_duels_says_why(make_chat):
    app = make_chat()
    app.backend.refusals = {"duel": "no duel here"}

    async def scenario(pilot):
        await until(pilot, lambda: ready(app))
        app.action_duel()
        await until(pilot, lambda: "no duel here" in notices(app))
        assert not isinstance(app.screen, DuelScreen)

    drive(app, scenario)
