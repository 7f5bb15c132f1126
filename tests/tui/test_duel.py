"""Duels: with scripted steps, and in the chat with a tiny model."""

import threading
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from textual.widgets import Select

from entropix_mlx import Profile, Settings
from entropix_mlx.backends.events import DuelBegan, DuelForkGrew, DuelStepsArrived, UserMessage
from entropix_mlx.chat.session import Context
from entropix_mlx.engine import forward
from entropix_mlx.traces.trace import Header, read_trace
from entropix_mlx.tui.gauges.gauges import ForkRace
from entropix_mlx.tui.gauges.lines import Strip
from entropix_mlx.tui.keys import KeyBar
from entropix_mlx.tui.screens.duel import DuelScreen
from entropix_mlx.tui.transcript.answer import AnswerView
from tests.steps import make_step, make_steps
from tests.tui.conftest import (
    ask,
    idle,
    make_viewer,
    notices,
    ready,
    running,
    text_of,
    turns,
    until,
)

LEFT = [make_step(n, f" w{n}") for n in range(6)]
RIGHT = [*LEFT[:4], make_step(4, " other", token=7), make_step(5, " end", token=8)]


@asynccontextmanager
async def play(size=(120, 40)):
    """Show a duel; what is yielded last brings steps to a side, and has the screen's results."""
    async with running(make_viewer(), size) as pilot:
        begun, results = [], []
        screen = DuelScreen(
            UserMessage("What did he do?"),
            Settings(seed=1),
            1,
            lambda question, sides, cancel: begun.append(cancel),
            Profile.load(),
        )
        await pilot.app.push_screen(screen, results.append)
        await pilot.pause()

        def arrive(side, steps, ended=False, error=None):
            screen.receive(DuelStepsArrived(begun[-1], side, steps, ended, error))

        arrive.cancels, arrive.results = begun, results
        yield pilot, screen, arrive


def result(screen) -> str:
    return str(screen.query_one("#divergence").visual)


def marked(screen) -> list:
    """Return the tokens that are highlighted in both answers."""
    return [answer.cursor for answer in screen.query(AnswerView)]


async def test_both_sides_grow_the_difference_is_marked_and_the_table_comes_last():
    async with play() as (pilot, screen, arrive):
        bar = screen.query_one(KeyBar)
        left, right = screen.query(AnswerView)
        assert result(screen) == "the same text so far …"
        assert "Keep" not in bar.render().plain
        arrive(1, RIGHT[:2])
        assert "2 Keep right" in bar.render().plain
        assert "1 Keep left" not in bar.render().plain
        arrive(0, LEFT[:5])
        arrive(1, RIGHT[2:4])
        assert (len(left.steps), len(right.steps)) == (5, 4)
        assert marked(screen) == [None, None]
        arrive(1, RIGHT[4:5])
        assert result(screen) == "the answers differ from token 5 on …"
        assert marked(screen) == [4, 4]
        assert all(strip.visual.spans for strip in screen.query(Strip))
        arrive(0, LEFT[5:], ended=True)
        arrive(1, RIGHT[5:], ended=True)
        assert result(screen).startswith("the answers differ from token 5 on\nsampler")
        assert "entropix       6" in result(screen)
        assert "greedy         6" in result(screen)
        assert marked(screen) == [4, 4]
        await pilot.pause()
        for number, answer in enumerate((left, right)):
            assert answer.region.y == screen.query_one(f"#side-{number}").region.y, "at the top"


@pytest.mark.parametrize(
    ("right", "difference"),
    [(LEFT[:3], "from token 4 on"), (RIGHT[4:], "from the first token"), (LEFT, "the same text\n")],
)
async def test_the_first_difference(right, difference):
    async with play() as (_, screen, arrive):
        arrive(0, LEFT, ended=True)
        arrive(1, right, ended=True)
        assert difference in result(screen)


@pytest.mark.parametrize("size", [(20, 5), (40, 24), (60, 20), (80, 24), (200, 60)])
async def test_a_duel_fits_any_screen_and_its_table_is_not_cut(size):
    async with play(size) as (pilot, screen, arrive):
        arrive(0, LEFT, ended=True)
        arrive(1, RIGHT, ended=True)
        await pilot.pause()
        lines = result(screen).splitlines()
        assert size[0] < 40 or max(map(len, lines)) <= size[0] - 2
        assert lines[1].split()[:2] == ["sampler", "tokens"]
        assert lines[1].split()[-1] == "forks"


async def test_the_branches_of_a_fork_are_shown_below_their_side():
    fork = next(step.fork for step in make_steps() if step.fork)
    async with play() as (pilot, screen, arrive):
        races = screen.query(ForkRace)
        arrive(1, RIGHT[:1])
        screen.receive(DuelForkGrew(arrive.cancels[-1], 1, fork))
        await until(pilot, lambda: races[1].display)
        assert not races[0].display
        assert "3 branches" in str(races[1].visual)
        arrive(1, RIGHT[1:2])
        assert not races[1].display


async def test_late_steps_are_dropped():
    async with play() as (pilot, screen, arrive):
        arrive(0, LEFT, ended=True)
        (first,) = arrive.cancels
        screen.query_one("#sampler-1", Select).value = "min_p"
        await until(pilot, lambda: len(arrive.cancels) == 2)
        assert first.is_set()
        screen.receive(DuelStepsArrived(first, 0, LEFT))
        arrive(1, RIGHT)
        assert [len(answer.steps) for answer in screen.query(AnswerView)] == [0, 6]
        await screen.query(AnswerView).remove()  # as while the app ends
        arrive(0, LEFT)
        screen.refresh_bindings()
        await pilot.pause()


@pytest.mark.parametrize(("key", "side"), [("1", LEFT), ("2", RIGHT)])
async def test_a_side_can_be_kept(key, side):
    async with play() as (pilot, screen, arrive):
        await pilot.press(key)
        assert pilot.app.screen is screen, "there is nothing to keep yet"
        arrive(0, LEFT)
        arrive(1, RIGHT)
        await pilot.press(key)
        assert arrive.cancels[-1].is_set()
    (choice,) = arrive.results
    assert (choice.question.text, choice.seed, choice.steps) == ("What did he do?", 1, side)


async def test_traces_of_both_sides(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    header = Header("demo", "entropix", Profile.load(), 1, [], 100, 5)
    async with play() as (pilot, screen, arrive):
        headers = header, replace(header, sampler="greedy")
        screen.receive(DuelBegan(arrive.cancels[-1], headers))
        arrive(0, LEFT)
        arrive(1, RIGHT)
        await pilot.press("t")
    for name, steps in (("entropix", LEFT), ("greedy", RIGHT)):
        trace = read_trace(tmp_path / f"duel-{name}-1.jsonl")
        assert [step.token for step in trace.steps] == [step.token for step in steps]


async def test_a_side_that_fails_is_reported_and_the_other_goes_on():
    async with play() as (_, screen, arrive):
        arrive(0, LEFT[:2], ended=True, error="the logits are NaN")
        arrive(1, RIGHT, ended=True)
        assert result(screen) == "entropix failed: the logits are NaN"
        assert len(list(screen.query(AnswerView))[1].steps) == 6


@pytest.fixture
def prompts(monkeypatch):
    """The prompts of all sessions."""
    prompts = []
    original = Context.fit

    def fit(context, conversation, max_tokens):
        prompt = original(context, conversation, max_tokens)
        prompts.append(context.tokenizer.decode(prompt))
        return prompt

    monkeypatch.setattr(Context, "fit", fit)
    return prompts


def ended(app) -> bool:
    return "sampler" in text_of(app, "#divergence")


async def test_a_duel_in_the_chat(make_chat, prompts):
    app = make_chat(max_tokens=8)
    async with running(app) as pilot:
        await ask(pilot, "one")
        await ask(pilot, "two")
        asked = prompts[-1]
        await pilot.press("f4")
        screen = app.screen
        assert isinstance(screen, DuelScreen)
        await pilot.press("f1")
        await until(pilot, lambda: "sampler" in result(screen))
        assert app.screen is not screen, "all of it came while the help was on top"
        await pilot.press("escape")
        assert prompts[-2:] == [asked] * 2, "the last question is asked in its own place"
        left, right = screen.query(AnswerView)
        assert len(left.steps) == len(right.steps) == 8
        assert {step.strategy for step in right.steps} == {"sample"}
        screen.query_one("#sampler-1", Select).value = "entropix"
        await until(pilot, lambda: "the same text\n" in result(screen))
        await pilot.press("escape")
        assert len(turns(app)) == 2, "a duel is no turn"
        await idle(pilot)
        await pilot.press("o", "n", "f4")
        await until(pilot, lambda: ended(app))
        assert prompts[-1].startswith(asked)
        assert "user: on" in prompts[-1]
        await pilot.press("2")
        await until(pilot, lambda: ready(app) and len(turns(app)) == 3)
        assert (turns(app)[-1].question, app.composer.text) == ("on", "")


async def test_leaving_a_duel_stops_both_sides(make_chat):
    app = make_chat(max_tokens=2000)
    async with running(app) as pilot:
        await idle(pilot)
        await pilot.press("h", "i", "f4")
        sides = list(app.screen.query(AnswerView))
        await until(pilot, lambda: all(side.steps for side in sides))
        await pilot.press("escape")
        await idle(pilot)
        assert all(len(side.steps) < 2000 for side in sides)


async def test_leaving_a_duel_stops_a_prefill(make_chat, monkeypatch):
    app = make_chat(max_tokens=1)
    reading, gate, chunks = threading.Event(), threading.Event(), []
    original = forward.Engine.prefill

    def prefill(self, text, tokens):
        chunks.append(len(tokens))
        reading.set()
        gate.wait(10)
        original(self, text, tokens)

    monkeypatch.setattr(forward.Engine, "prefill", prefill)
    async with running(app) as pilot:
        await idle(pilot)
        app.composer.text = "x" * 3000
        await pilot.press("f4")
        await until(pilot, reading.is_set)
        await pilot.press("escape")
        gate.set()
        await idle(pilot)
        assert len(chunks) == 1


async def test_an_unexpected_failure_in_a_duel_is_a_message(make_chat, monkeypatch):
    app = make_chat(max_tokens=4)
    async with running(app) as pilot:
        await ask(pilot, "hi")
        with monkeypatch.context() as patched:
            patched.setattr(Context, "fit", lambda *_: 1 / 0)
            await pilot.press("f4")
            await until(pilot, lambda: "unexpected ZeroDivisionError" in notices(app))
        await pilot.press("escape")
        await idle(pilot)
        await ask(pilot, "on")


async def test_the_keys_of_the_chat_are_off_during_a_duel(make_chat):
    app = make_chat(max_tokens=3)
    async with running(app) as pilot:
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
