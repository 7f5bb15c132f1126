"""The recorded session of `entropix chat --demo`: all of the screen, and no model."""

from contextlib import asynccontextmanager

import pytest
from textual.widgets import Select

from entropix_mlx.backends.recorded import RecordedBackend, demo_recording
from entropix_mlx.palette import QUESTIONS
from entropix_mlx.settings import Settings
from entropix_mlx.step import Origin, Strategy, first_divergence
from entropix_mlx.tui.app import ChatApp
from entropix_mlx.tui.keys import KeyBar
from entropix_mlx.tui.screens.duel import DuelScreen, DuelSide
from tests.tui.conftest import idle, notices, racing, ready, running, shown_steps, turns, until


def test_the_recording_answers_the_questions_of_the_card():
    recording = demo_recording()
    recorded = recording.conversation
    assert [turn.question for turn in recorded.turns] == list(QUESTIONS)
    steps = [s for turn in recorded.turns for answer in turn.answers for s in answer.steps]
    assert set(Strategy) - {Strategy.SAMPLE, Strategy.THINK_SAMPLE} <= {s.strategy for s in steps}
    assert any(step.origin is Origin.INSERTED for step in steps), "a thought"
    branches = [branch for step in steps if step.fork for branch in step.fork.branches]
    assert branches, "a fork"
    assert all(branch.lead is not None for branch in branches), "with scores"
    for turn, answer, index in recording.races:
        assert recorded.turns[turn].answers[answer].steps[index].fork, "only forks have races"
    assert any(len(turn.answers) > 1 for turn in recorded.turns)


@asynccontextmanager
async def demo(pace=0):
    app = ChatApp(RecordedBackend(Settings(), demo_recording(pace=pace)))
    async with running(app) as pilot:
        await idle(pilot)
        yield app, pilot


async def test_the_demo():
    async with demo() as (app, pilot):
        await pilot.press(*"Else?", "enter")
        await until(pilot, lambda: "only a recording" in notices(app))
        app.composer.text = ""
        await pilot.press("1", "enter")
        await until(pilot, lambda: ready(app) and turns(app) and turns(app)[0].answer.steps)
        first = turns(app)[0].answer.text
        await pilot.press("ctrl+r")
        await until(pilot, lambda: ready(app) and len(turns(app)[0].answers) == 2)
        assert turns(app)[0].answer.text != first
        await pilot.press("ctrl+n")
        await until(pilot, lambda: ready(app) and not turns(app))
        await pilot.press("1", "enter")
        await until(pilot, lambda: ready(app) and turns(app) and turns(app)[0].answer.steps)
        other = demo_recording().conversation.turns[0].answers[1].steps
        part = first_divergence(turns(app)[0].answer.steps, other)
        app.workspace.transcript.focus()
        app.workspace.transcript.point(part)
        await pilot.pause()
        await pilot.press(*["up"] * 4)
        while app.workspace.inspector.tokens != (other[part].token,):
            await pilot.press("down")
        await pilot.press("f")
        await until(pilot, lambda: ready(app) and len(turns(app)[0].answers) == 2)
        assert turns(app)[0].answer.steps == other
        await pilot.press("home", *["down"] * 5, "f")
        await until(pilot, lambda: "only what was recorded" in notices(app))


def regions(app):
    """Return where everything beside the text is."""
    side = app.workspace.query("#side *")
    return [widget.region for widget in (app.workspace.transcript, app.workspace.why, *side)]


async def test_the_branches_of_a_fork_race_in_the_demo():
    async with demo(3) as (app, pilot):
        await pilot.press("3", "enter")
        await until(pilot, lambda: racing(app))
        places = regions(app)
        await until(pilot, lambda: shown_steps(app) > 3 and not racing(app))
        assert regions(app) == places, "nothing moves"
        fork = next(step for step in turns(app)[0].answer.steps if step.fork)
        lost = next(n for n in range(5) if n != fork.fork.winner)
        await pilot.press("escape")
        await idle(pilot)
        recorded = demo_recording().conversation.turns[2].answers
        branch = fork.fork.branches[lost].tokens
        ends = fork.index + len(branch)
        begins = [tuple(s.token for s in a.steps[fork.index : ends]) for a in recorded]
        assert branch in begins, "a losing branch can be continued"


async def test_a_demo_that_plays_can_be_stopped_and_quit():
    async with demo(0.05) as (app, pilot):
        await pilot.press("2", "enter")
        await until(pilot, lambda: turns(app) and turns(app)[0].answer.steps)
        await pilot.press("escape")
        await idle(pilot)
        assert len(turns(app)[0].answer.steps) < 64


async def test_keys_that_do_nothing_in_the_demo_are_not_named_and_say_why():
    async with demo() as (app, pilot):
        await pilot.press("1", "enter")
        await until(pilot, lambda: ready(app) and turns(app) and turns(app)[0].answer.steps)
        named = {binding.id for binding in app.query_one(KeyBar).shown}
        assert "chat.regenerate" in named
        assert "chat.chats" not in named
        await pilot.press("ctrl+l")
        await until(pilot, lambda: "--demo" in notices(app))


def verdict(app) -> str:
    return str(app.screen.query_one("#divergence").visual)


@pytest.mark.parametrize("number", ["1", "2", "3"])
async def test_a_duel_is_played_and_its_winner_kept(number):
    async with demo() as (app, pilot):
        await pilot.press(number, "f4")
        assert isinstance(app.screen, DuelScreen)
        await until(pilot, lambda: "differ" in verdict(app) and "greedy" in verdict(app))
        left, right = (list(side.steps) for side in app.screen.query(DuelSide))
        assert left == demo_recording().conversation.turns[int(number) - 1].answers[0].steps
        assert right == demo_recording().rivals["greedy"].turns[int(number) - 1].answer.steps
        await pilot.press("2")
        await until(pilot, lambda: ready(app) and turns(app))
        assert turns(app)[0].answer.steps == right


async def test_a_duel_that_was_not_recorded_says_what_was():
    async with demo() as (app, pilot):
        await pilot.press("1", "f4")
        app.screen.query_one("#sampler-1", Select).value = "min_p"
        await until(pilot, lambda: "min_p failed" in verdict(app))
        assert "only a recording of entropix and greedy" in verdict(app)
        assert app.screen.query(DuelSide).first().steps
        await pilot.press("escape", *"Else?", "f4")
        await until(pilot, lambda: "press 1, 2 or 3" in verdict(app))
        await pilot.press("escape")
        await idle(pilot)


async def test_a_duel_of_the_demo_can_be_left():
    async with demo(0.05) as (app, pilot):
        await pilot.press("3", "f4")
        await until(pilot, lambda: any(side.steps for side in app.screen.query(DuelSide)))
        await pilot.press("escape")
        await idle(pilot)
