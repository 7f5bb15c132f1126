"""The settings in the chat: they recolour at once, and refuse what cannot be."""

import threading

import pytest
from textual.widgets import Checkbox, Input, Select

from entropix_mlx import Profile
from tests.tui.conftest import ask, drive, notices, ready, turns, until
from tests.tui.helpers import answers, gated
from tui.screens.tuning.tune import Slider, TuneScreen


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
        box = app.screen.query_one("#think", Checkbox)
        assert "✓" in str(box.render())
        box.value = False
        assert "✓" not in str(box.render()), "it can be read without colours"
        await pilot.press("ctrl+r")
        await until(pilot, lambda: ready(app) and answers(app) == 2)
        assert turns(app)[0].answer.seed == 43
        assert app.workspace.profile.thresholds.resample_min_entropy == 8.0
        assert app.workspace.profile.think.max_insertions == 0
        assert {s.strategy for s in app.workspace.transcript.last_answer.steps} == {"sample"}

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


def test_a_mistake_in_the_settings_is_a_message(make_chat):
    app = make_chat(sampler="greedy", temperature=0.5)

    async def scenario(pilot):
        await until(pilot, lambda: ready(app))
        await pilot.press("h", "i", "enter")
        await until(pilot, lambda: "takes no temperature" in notices(app))
        assert ready(app)

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
