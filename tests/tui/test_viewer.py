"""A trace that is played: steps come at their times, or faster, and the gauges follow."""

from entropix_mlx.tui.viewer import SPEEDS, Replay
from tests.steps import make_step, make_steps
from tests.tui.conftest import until, viewing

STEPS = [make_step(n, f" w{n}", time=5.0 + n) for n in range(10)]


def test_steps_come_at_their_times():
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


def test_a_replay_begins_at_the_cursor_and_times_may_go_back():
    replay = Replay(STEPS, 4)
    assert replay.advance(1.0) == STEPS[4:6]
    assert not replay.ended
    steps = [make_step(0, "a", time=9.0), make_step(1, "b", time=1.0), make_step(2, "c", time=9.5)]
    replay = Replay(steps)
    assert replay.advance(0.1) == steps[:2]
    assert replay.advance(0.5) == steps[2:]


async def test_space_plays_pauses_and_goes_on():
    async with viewing(make_steps(40)) as (app, pilot):
        workspace, status = app.workspace, app.workspace.status
        await pilot.press("space", "minus", "minus")
        assert status.progress == "playing ×0.25"
        await until(pilot, lambda: 1 <= len(workspace.last_steps) < 40)
        await pilot.press("space")
        shown = len(workspace.last_steps)
        for _ in range(20):  # more than a frame
            await pilot.pause(0.01)
        assert len(workspace.last_steps) == shown
        assert status.progress == "paused ×0.25"
        await pilot.press("space", *["plus"] * 6)
        await until(pilot, lambda: not status.progress)
        assert len(workspace.last_steps) == 40
        assert workspace.why.visual.plain.startswith("stopped")
