"""A trace that is played: steps come when they came, or faster, and the gauges follow."""

from tests.tui.conftest import drive, make_step, make_steps, make_viewer, until
from tui.gauges.plane import Plane
from tui.viewer import SPEEDS, Replay

STEPS = [make_step(n, f" w{n}", time=5.0 + n) for n in range(10)]


def test_steps_come_when_they_came():
    replay = Replay(STEPS)
    assert replay.advance(0.0) == STEPS[:1], "the first one at once: the prefill is not played"
    assert replay.advance(0.9) == []
    assert replay.advance(0.2) == STEPS[1:2]
    replay.change_speed(1)
    assert replay.advance(2.0) == STEPS[2:6]
    replay.change_speed(100)
    assert replay.speed == SPEEDS[-1]
    assert replay.advance(1.0) == STEPS[6:]
    assert replay.ended


def test_playing_begins_where_the_cursor_is():
    replay = Replay(STEPS, 4)
    assert replay.advance(1.0) == STEPS[4:6]
    assert not replay.ended


def test_times_that_go_back_stop_nothing():
    steps = [make_step(0, "a", time=9.0), make_step(1, "b", time=1.0), make_step(2, "c", time=9.5)]
    replay = Replay(steps)
    assert replay.advance(0.1) == steps[:2]
    assert replay.advance(0.5) == steps[2:]


def test_space_plays_pauses_and_goes_on():
    app = make_viewer(make_steps(40))

    async def scenario(pilot):
        workspace, status = app.workspace, app.workspace.status
        await pilot.press("space", "minus", "minus")
        assert status.progress == "playing ×0.25"
        await until(pilot, lambda: 1 <= len(workspace.last_steps) < 40)
        await pilot.press("space")
        shown = len(workspace.last_steps)
        await pilot.pause(0.3)
        assert len(workspace.last_steps) == shown
        assert status.progress == "paused ×0.25"
        await pilot.press("space", *["plus"] * 6)
        await until(pilot, lambda: not status.progress)
        assert len(workspace.last_steps) == 40
        assert len(app.query_one(Plane)._steps) == 40
        assert workspace.why.visual.plain.startswith(("end", "stopped"))

    drive(app, scenario)


def test_escape_shows_the_whole_answer_again():
    app = make_viewer(make_steps(40))

    async def scenario(pilot):
        await pilot.press("home", *["right"] * 10, "space", "minus")
        await until(pilot, lambda: 10 < len(app.workspace.last_steps) < 40)
        await pilot.press("escape")
        assert len(app.workspace.last_steps) == 40
        await pilot.press("plus")
        assert not app.workspace.status.progress

    drive(app, scenario)


def test_there_is_nothing_to_play_in_an_empty_trace():
    app = make_viewer([])

    async def scenario(pilot):
        await pilot.press("space", "space", "escape")

    drive(app, scenario)
