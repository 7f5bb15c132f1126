"""Duels with scripted steps: both sides grow together, and the verdict says what happened."""

from dataclasses import replace

import pytest

from entropix_mlx import Profile, Settings
from entropix_mlx.backends.events import (
    DuelBegan,
    DuelForkGrew,
    DuelStepsArrived,
    UserMessage,
)
from entropix_mlx.traces.trace import Header, read_trace
from tests.tui.conftest import drive, make_step, make_steps, make_viewer, until
from tui.composer.key_bar import KeyBar
from tui.gauges.race import Race
from tui.screens.duel import DuelScreen
from tui.transcript.answer import AnswerView

LEFT = [make_step(n, f" w{n}") for n in range(6)]
RIGHT = [*LEFT[:4], make_step(4, " other", token=7), make_step(5, " end", token=8)]


def play(scenario, size=(120, 40)):
    """Run a scenario with a duel whose steps it hands to the function that it is given.

    Returns:
        What the screen was left with.
    """
    app = make_viewer()
    kept = []

    async def run(pilot):
        begun = []
        screen = DuelScreen(
            UserMessage("What did he do?"),
            Settings(seed=1),
            1,
            lambda question, sides, cancel: begun.append((sides, cancel)),
            Profile.load(),
        )
        await app.push_screen(screen, kept.append)
        await pilot.pause()

        def arrive(side, steps, ended=False, error=None):
            screen.receive(DuelStepsArrived(begun[-1][1], side, steps, ended, error))

        arrive.cancel = begun[-1][1]
        await scenario(pilot, screen, arrive)

    drive(app, run, size)
    return kept


def told(screen) -> str:
    return str(screen.query_one("#divergence").visual)


def test_a_short_answer_stands_at_the_top():
    async def scenario(pilot, screen, arrive):
        assert "same text so far" in told(screen)
        arrive(0, LEFT)
        arrive(1, RIGHT)
        await pilot.pause()
        assert told(screen) == "the answers part at token 4 …"
        for number, answer in enumerate(screen.query(AnswerView)):
            assert answer.region.y == screen.query_one(f"#side-{number}").region.y

    play(scenario)


def test_what_still_comes_while_the_app_ends_is_dropped():
    async def scenario(pilot, screen, arrive):
        await screen.query(AnswerView).remove()
        arrive(0, LEFT)
        screen.refresh_bindings()  # the last line asks which keys would do something
        await pilot.pause()

    play(scenario)


def test_both_sides_grow_and_the_verdict_comes_last():
    async def scenario(pilot, screen, arrive):
        left, right = screen.query(AnswerView)
        arrive(0, LEFT[:2])
        arrive(1, RIGHT[:1])
        assert (len(left.steps), len(right.steps)) == (2, 1)
        arrive(0, LEFT[2:], ended=True)
        assert told(screen) == "the same text so far …"
        arrive(1, RIGHT[1:], ended=True)
        assert told(screen).startswith("the answers part at token 4\nsampler")
        assert "entropix       6" in told(screen)
        assert "greedy         6" in told(screen)

    play(scenario)


@pytest.mark.parametrize("width", [40, 60, 80])
def test_the_verdict_is_not_cut(width):
    async def scenario(pilot, screen, arrive):
        arrive(0, LEFT, ended=True)
        arrive(1, RIGHT, ended=True)
        lines = told(screen).splitlines()
        assert max(map(len, lines)) <= width - 2
        assert lines[1].split()[:2] == ["sampler", "tokens"]
        assert lines[1].split()[-1] == "forks"

    play(scenario, size=(width, 24))


def test_the_first_difference_is_marked_as_it_happens():
    async def scenario(pilot, screen, arrive):
        left, right = screen.query(AnswerView)
        arrive(0, LEFT[:5])
        arrive(1, RIGHT[:4])
        assert (left._cursor, right._cursor) == (None, None)
        arrive(1, RIGHT[4:5])
        assert (left._cursor, right._cursor) == (4, 4)
        arrive(0, LEFT[5:], ended=True)
        arrive(1, RIGHT[5:], ended=True)
        assert (left._cursor, right._cursor) == (4, 4)

    play(scenario)


def test_the_ways_of_a_fork_race_below_their_side():
    fork = next(step.fork for step in make_steps() if step.fork)

    async def scenario(pilot, screen, arrive):
        races = screen.query(Race)
        arrive(1, RIGHT[:1])
        screen.receive(DuelForkGrew(arrive.cancel, 1, fork))
        await until(pilot, lambda: races[1].display)
        assert not races[0].display
        assert "3 ways" in str(races[1].visual)
        arrive(1, RIGHT[1:2])
        assert not races[1].display

    play(scenario)


def test_the_last_line_names_what_can_be_kept():
    async def scenario(pilot, screen, arrive):
        bar = screen.query_one(KeyBar)
        assert "Keep" not in bar.render().plain
        arrive(1, RIGHT[:2])
        assert "2 Keep right" in bar.render().plain
        assert "1 Keep left" not in bar.render().plain

    play(scenario)


def test_a_longer_answer_is_not_the_same_text():
    async def scenario(pilot, screen, arrive):
        arrive(0, LEFT, ended=True)
        arrive(1, LEFT[:3], ended=True)
        assert "part at token 3" in told(screen)

    play(scenario)


@pytest.mark.parametrize(("key", "side"), [("1", LEFT), ("2", RIGHT)])
def test_a_side_can_be_kept(key, side):
    async def scenario(pilot, screen, arrive):
        await pilot.press(key)
        assert pilot.app.screen is screen, "there is nothing to keep yet"
        arrive(0, LEFT)
        arrive(1, RIGHT)
        await pilot.press(key)
        assert arrive.cancel.is_set()

    (kept,) = play(scenario)
    assert (kept.question.text, kept.seed, kept.steps) == ("What did he do?", 1, side)


def test_traces_of_both_sides(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    header = Header("demo", "entropix", Profile.load(), 1, [], 100, 5)

    async def scenario(pilot, screen, arrive):
        screen.receive(DuelBegan(arrive.cancel, (header, replace(header, sampler="greedy"))))
        arrive(0, LEFT)
        arrive(1, RIGHT)
        await pilot.press("t")

    play(scenario)
    for name, steps in (("entropix", LEFT), ("greedy", RIGHT)):
        trace = read_trace(tmp_path / f"duel-{name}-1.jsonl")
        assert [step.token for step in trace.steps] == [step.token for step in steps]


@pytest.mark.parametrize("size", [(20, 5), (60, 20), (80, 24), (200, 60)])
def test_a_duel_fits_any_screen(size):
    async def scenario(pilot, screen, arrive):
        arrive(0, LEFT, ended=True)
        arrive(1, RIGHT, ended=True)
        await pilot.pause(0.3)

    play(scenario, size)


def test_a_side_that_fails_is_told_and_the_other_goes_on():
    async def scenario(pilot, screen, arrive):
        arrive(0, LEFT[:2], ended=True, error="the logits are NaN")
        arrive(1, RIGHT, ended=True)
        assert told(screen) == "entropix failed: the logits are NaN"
        assert len(list(screen.query(AnswerView))[1].steps) == 6

    play(scenario)
