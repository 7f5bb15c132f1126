"""A quiet screen: tokens in the foreground colour, the focus mode, the least sure tokens."""

import math

import pytest

from entropix_mlx.configuration import Configuration
from entropix_mlx.step import Strategy
from entropix_mlx.tui.screens.answers import LeastSure
from entropix_mlx.tui.styles import Colouring, token_style
from entropix_mlx.tui.viewer import ViewerApp
from tests.steps import make_step, make_trace
from tests.tui.conftest import ask, idle, make_viewer, running, shown, until

RARE = {Strategy.THINK, Strategy.THINK_SAMPLE, Strategy.BRANCH, Strategy.RESAMPLE}


@pytest.mark.parametrize("strategy", Strategy)
def test_only_rare_tokens_have_a_colour_of_their_own(strategy):
    style = token_style(make_step(0, "x", strategy), strategy, Colouring.STRATEGY)
    assert (style.foreground is not None) == (strategy in RARE)
    assert bool(style.underline or style.italic) == (strategy in RARE), "also without colour"


def test_underlines_differ_without_colour():
    styles = [
        token_style(make_step(0, "x", entropy=h), Strategy.SAMPLE, Colouring.UNDERLINE)
        for h in (0.5, 2.5, 4.0, 6.0)
    ]
    assert len({(s.underline, s.underline2, s.bold) for s in styles}) == 4
    assert all(s.foreground is s.background is None for s in styles)


@pytest.mark.parametrize("size", [(40, 12), (80, 24), (120, 40), (200, 60)], ids=str)
async def test_the_focus_mode_shows_nothing_but_the_text_and_the_field(size, make_chat):
    app = make_chat()
    async with running(app, size) as pilot:
        await ask(pilot, "hi")
        await pilot.press("ctrl+b")
        space = app.workspace
        others = space.strip, space.why, space.compact, space.status, space.timeline, space.plane
        await until(pilot, lambda: not any(part.region.area for part in others))
        assert space.transcript.size.height >= size[1] - 3
        assert space.transcript.size.width <= 104
        await pilot.press("tab", "left")
        await pilot.pause()
        assert not any(part.region.area for part in others), "with the cursor in the text"
        await pilot.press("c", "ctrl+b")
        await until(pilot, lambda: space.strip.region.area or space.why.region.area or size[1] < 30)
        assert space.transcript.colouring is Colouring.STRATEGY


async def test_colours_and_the_focus_mode_are_remembered(tmp_path, make_chat):
    path = tmp_path / "config.toml"
    app = make_chat(configuration=Configuration(path))
    async with running(app) as pilot:
        await ask(pilot, "hi")
        await pilot.press("tab", "c", "ctrl+b")
        await until(pilot, lambda: path.exists() and Configuration.load(path).focus)
        read = Configuration.load(path)
        assert (read.colours, read.focus) == ("surprise", True)
    again = ViewerApp.of_trace(make_trace(), read)
    async with running(again) as pilot:
        assert not again.workspace.status.region.area
        await pilot.press("ctrl+b")
        assert again.workspace.transcript.shown_colouring is Colouring.SURPRISE
        await until(pilot, lambda: not Configuration.load(path).focus)


@pytest.mark.parametrize("size", [(40, 12), (120, 40)], ids=str)
async def test_the_list_of_the_least_sure_tokens_goes_to_one(size):
    steps = [make_step(n, f" word{n}", logprob=-float(n % 7)) for n in range(60)]
    app = make_viewer(steps)
    async with running(app, size) as pilot:
        await pilot.press("ctrl+u")
        await until(pilot, lambda: isinstance(app.screen, LeastSure))
        await pilot.press("down", "enter")
        transcript = app.workspace.transcript
        await until(pilot, lambda: transcript.cursor is not None)
        assert transcript.cursor == 13
        assert math.isclose(steps[13].logprob, min(step.logprob for step in steps))
        await pilot.press("ctrl+u", "escape")
        assert transcript.cursor == 13


async def test_the_least_sure_tokens_of_a_chat_without_answer_are_not_listed(make_chat):
    app = make_chat()
    async with running(app) as pilot:
        await idle(pilot)
        await app.run_action("unsure")
        assert not isinstance(app.screen, LeastSure)
        assert not shown(app)
