"""Settings and options: thresholds recolour at once, mistakes are refused, defaults are saved."""

import math
import threading
from contextlib import asynccontextmanager

from textual.widgets import Checkbox, Input, Label, Select

from entropix_mlx import Profile, Settings
from entropix_mlx.chat.recorded import demo_profile
from entropix_mlx.profiles.tree import table
from entropix_mlx.tui.gauges.plane import Plane
from entropix_mlx.tui.screens.tuning.sliders import THRESHOLDS, Slider
from entropix_mlx.tui.screens.tuning.tune import TunedSettings, TuneScreen
from tests.tui.conftest import (
    answers,
    ask,
    chatting,
    fill,
    gated,
    idle,
    notices,
    ready,
    running,
    text_of,
    turns,
    until,
    viewing,
)

DEMO = demo_profile()


def test_every_threshold_bounds_the_measurement_of_the_table():
    assert list(THRESHOLDS) == list(vars(DEMO.thresholds))
    for name, (strategy, measurement, above) in THRESHOLDS.items():
        moved = DEMO.replace({"thresholds": {name: 0.123}})
        (row,) = [row for row in table(moved) if row.strategy is strategy]
        assert row.bounds[measurement][0 if above else 1] == 0.123


def test_a_threshold_without_a_number_is_off():
    slider = Slider("resample_min_entropy", math.inf, 8.0)
    number = Slider("resample_min_entropy", 5.0, 8.0)
    assert "off" in slider.render().plain
    assert "inf" not in slider.render().plain
    assert slider.render().cell_length == number.render().cell_length


@asynccontextmanager
async def tune(size=(120, 40)):
    async with viewing(size=size) as (app, pilot):
        tuned = TunedSettings(Settings(profile=Profile.load()), False)
        screen = TuneScreen(tuned, app.workspace.preview, print, print)
        await app.push_screen(screen)
        await pilot.pause()
        yield pilot, screen


def slider_of(screen, name) -> Slider:
    return screen.query_one(f"#slider-{name}", Slider)


async def test_text_plane_and_counts_change_together():
    async with tune() as (pilot, screen):
        transcript = pilot.app.workspace.transcript
        before = list(transcript.last_answer.strategies)
        slider = slider_of(screen, "resample_min_entropy")
        assert slider.render().plain.startswith("■ H >")
        assert slider.render().plain.rstrip().endswith(" 10")
        plane = str(screen.query_one(Plane).visual)
        await pilot.press("down")
        assert screen.focused is slider_of(screen, "low_varentropy")
        slider.focus()
        await pilot.press(*["shift+left"] * 4)
        assert "10 → " in slider.render().plain
        assert "change strategy" in str(screen.query_one("#changes", Label).visual)
        assert str(screen.query_one(Plane).visual) != plane
        assert transcript.last_answer.strategies != before
        await pilot.press("escape")
        assert transcript.last_answer.strategies == before


async def test_a_threshold_recolours_and_then_regenerates(make_chat):
    async with chatting(make_chat, "hi") as (app, pilot):
        answer = app.workspace.transcript.last_answer
        decided = list(answer.strategies)
        await pilot.press("f3")
        screen = app.screen
        slider_of(screen, "resample_min_entropy").focus()
        await pilot.press(*["shift+right"] * 4)
        assert answer.strategies != decided, "without the model"
        changed = sum(a != b for a, b in zip(decided, answer.strategies, strict=True))
        assert text_of(app, "#changes").startswith(f"{changed} of 12 tokens")
        await pilot.press("enter")
        assert answer.strategies == decided, "no token stays recoloured"
        assert app.workspace.profile.thresholds.resample_min_entropy == 8.0
        await pilot.press("f3")
        app.screen.query_one("#sampler", Select).value = "min_p"
        app.screen.query_one("#seed", Input).value = "42"
        app.screen.query_one("#think", Checkbox).value = False
        assert not app.screen.query_one("#branch", Checkbox).value, "forks are off"
        app.screen.query_one("#ask", Checkbox).value = True
        await pilot.press("ctrl+r")
        await until(pilot, lambda: ready(app) and answers(app) == 2)
        assert isinstance(app.screen, TuneScreen), "to be compared and changed again"
        await pilot.press("enter")
        assert turns(app)[0].answer.seed == 43
        assert app.workspace.profile.think.max_insertions == 0
        assert app.workspace.profile.branch.max_branches > 0, "who is asked at forks wants them"
        assert {s.strategy for s in app.workspace.last_steps} == {"sample"}


async def test_settings_wait_for_the_model(make_chat):
    gate = threading.Event()
    profile = Profile.load().replace({"name": "mine", "think": {"max_insertions": 0}})
    app = make_chat(gated(gate), profile=profile)
    async with running(app) as pilot:
        await pilot.press("f3")
        assert not isinstance(app.screen, TuneScreen)
        assert "still loading" in notices(app)
        gate.set()
        await idle(pilot)
        await pilot.press("f3", "enter")
        await pilot.pause()
        assert app.workspace.profile == profile


async def test_mistakes_are_reported_and_settings_discarded(make_chat):
    async with chatting(make_chat, "hi") as (app, pilot):
        answer = app.workspace.transcript.last_answer
        decided = list(answer.strategies)
        await pilot.press("f3")
        screen = app.screen

        async def refused(name, value, message):
            field = screen.query_one(f"#{name}")
            before, field.value = field.value, value
            await pilot.press("enter")
            assert app.screen is screen
            assert message in text_of(app, "#changes")
            field.value = before

        await refused("seed", "many", "seed must be a whole number")
        await refused("temperature", "-3", "temperature must be")
        screen.query_one("#temperature", Input).value = "1"
        screen.query_one("#profile", Input).focus()
        await refused("profile", "absent", "no profile 'absent'")
        slider_of(screen, "resample_min_entropy").focus()
        await pilot.press(*["shift+right"] * 4, "escape")
        assert app.screen is not screen
        assert answer.strategies == decided
        assert app.workspace.profile == Profile.load()


async def test_a_profile_needs_no_enter_and_keeps_thresholds_that_are_moved_then(
    make_chat, tmp_path
):
    mine = tmp_path / "mine.toml"
    mine.write_text("[thresholds]\nlow_entropy = 0.7\n")
    async with chatting(make_chat) as (app, pilot):
        await pilot.press("f3")
        screen = app.screen
        field = screen.query_one("#profile", Input)
        field.focus()
        field.value = str(mine)
        slider_of(screen, "low_entropy").focus()
        await pilot.pause()
        await pilot.press("right", "enter")
        assert app.screen is not screen
        assert app.workspace.profile.name == "mine"
        assert app.workspace.profile.thresholds.low_entropy == 0.8


async def test_options_hold_from_the_next_answer_on_where_a_sampler_takes_them(make_chat):
    async with chatting(make_chat) as (app, pilot):
        await pilot.press("f3")
        app.screen.query_one("#max_tokens", Input).value = "5"
        app.screen.query_one("#top_k", Input).value = "3"
        await pilot.press("enter")
        await ask(pilot, "hi")
        assert len(turns(app)[0].answer.steps) == 5
        await pilot.press("f3")
        assert app.screen.query_one("#top_k", Input).value == "3"
        app.screen.query_one("#sampler", Select).value = "greedy"
        await pilot.pause()
        assert not app.screen.query_one("#top_k").parent.display
        await pilot.press("enter")
        await ask(pilot, "ho")
        assert {step.strategy for step in turns(app)[1].answer.steps} == {"argmax"}


async def test_thresholds_are_saved_as_a_profile(make_chat, tmp_path):
    path = tmp_path / "mine.toml"
    async with chatting(make_chat) as (app, pilot):
        await pilot.press("f3", "shift+right", "ctrl+s")
        await fill(pilot, str(path))
        await until(pilot, lambda: "saved" in notices(app))
        low = slider_of(app.screen, "low_entropy").value
    assert Profile.load(str(path)).thresholds.low_entropy == low != Profile.load().thresholds
