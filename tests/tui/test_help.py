"""What the screen says about itself: the page behind F1, and the last line."""

import math

import pytest
from textual.widgets import Static

from entropix_mlx import Profile
from entropix_mlx.backends.recorded import demo_profile
from entropix_mlx.step import Strategy
from tests.tui.conftest import ask, drive, make_viewer, ready, until
from tui.help_text import (
    MEANINGS,
    conditions,
    measurements,
    strategies,
)
from tui.keys import KeyBar


def keys(app) -> list[str]:
    return [binding.description for binding in app.query_one(KeyBar).shown]


def test_conditions_are_those_of_the_profile():
    told = conditions(demo_profile())
    assert told[Strategy.ARGMAX] == "where H < 2.02, V < 6.43"
    assert told[Strategy.BRANCH] == "where H < 5.3, V > 10.9, margin < 0.193"
    assert set(told) == set(MEANINGS)
    never = demo_profile().replace({"thresholds": {"resample_min_entropy": math.inf}})
    assert conditions(never)[Strategy.RESAMPLE] == "nowhere, in this profile"
    told = strategies(demo_profile()).plain
    assert "H < 2.02" in told
    assert "inserts a thinking text\n" in told
    assert "its text: “Let me explain.”" in told
    assert "inserts a thinking text\n" in strategies().plain


def test_what_the_help_says_of_v_has_numbers_only_where_there_are_some():
    assert "flat below 6.43, spiky from 10.9 on" in measurements(demo_profile()).plain
    never = demo_profile().replace({"thresholds": {"branch_min_varentropy": math.inf}})
    assert "inf" not in measurements(never).plain


def test_the_help_of_a_narrow_screen_has_no_broken_lines():
    app = make_viewer()

    async def scenario(pilot):
        app.workspace.use_profile(demo_profile())
        await pilot.press("f1")
        colours = next(s for s in app.screen.query(Static) if "argmax" in str(s.visual))
        await until(pilot, lambda: colours.content_size.width > 0)
        lines = str(colours.visual).splitlines()[1:]
        assert max(map(len, lines)) <= colours.content_size.width

    drive(app, scenario, (60, 20))


def test_help_tells_the_numbers_of_this_profile():
    app = make_viewer()
    changed = Profile.load().replace({"thresholds": {"low_entropy": 0.77}})

    async def scenario(pilot):
        app.workspace.use_profile(changed)
        await pilot.press("f1")
        text = "\n".join(str(widget.visual) for widget in app.screen.query("Static"))
        assert "H < 0.77" in text
        assert "entropy, says how open" in text
        assert "⟦" in text

    drive(app, scenario)


def test_the_last_line_names_what_helps_now(make_chat):
    app = make_chat(max_tokens=3)

    async def scenario(pilot):
        await until(pilot, lambda: ready(app))
        assert keys(app)[:2] == ["Help", "Commands"]
        assert not {"Tokens", "Stop", "Again", "Go this way"} & set(keys(app))
        await ask(pilot, "hi")
        assert keys(app)[0] == "Tokens"
        assert {"Again", "Settings", "Duel"} <= set(keys(app))
        await pilot.press("tab")
        assert {"Back", "Token", "Others"} <= set(keys(app))
        assert "Go this way" not in keys(app), "none was chosen"
        app.workspace.inspector.move(-9)
        while not app.workspace.inspector.chosen:
            await pilot.press("down")
        assert "Go this way" in keys(app)
        assert "Answer" not in keys(app), "there is only one"

    drive(app, scenario)


@pytest.mark.parametrize("width", [20, 60, 80, 120, 200])
def test_no_key_is_cut(width):
    app = make_viewer()

    async def scenario(pilot):
        await pilot.press("left")
        bar = app.query_one(KeyBar)
        line = bar.render().plain
        assert len(line) <= width - 2
        whole = [bar._part(binding).plain for binding in bar.shown]
        assert all(part in whole for part in line.split("  "))
        assert not {"Go this way", "Answer"} & set(keys(app)), "a trace cannot go on"

    drive(app, scenario, size=(width, 24))


def test_a_click_presses_a_key():
    app = make_viewer()

    async def scenario(pilot):
        line = app.query_one(KeyBar).render().plain
        await pilot.click(KeyBar, offset=(1 + line.index("Help"), 0))
        await pilot.pause()
        assert len(app.screen_stack) == 2

    drive(app, scenario)
