"""Tuning beside the plane: what a threshold is about, how it is moved, what that changes."""

import math

import pytest
from textual.widgets import Label

from entropix_mlx import Profile, Settings
from entropix_mlx.backends.recorded import demo_profile
from entropix_mlx.profiles.tree import table
from entropix_mlx.step import Strategy
from tests.tui.conftest import drive, make_step, make_viewer
from tui.gauges.lines import Strip
from tui.gauges.plane import MARGIN_LEFT, Map
from tui.screens.tuning.sliders import (
    NAME_WIDTH,
    THRESHOLDS,
    TRACK_WIDTH,
    Headings,
    Preview,
    Slider,
)
from tui.screens.tuning.tune import TuneScreen
from tui.screens.tuning.tuning_plane import TuningPlane, grabbed

DEMO = demo_profile()


@pytest.mark.parametrize("name", THRESHOLDS)
def test_a_threshold_is_about_what_the_table_says(name):
    strategy, measurement, above = THRESHOLDS[name]
    moved = DEMO.replace({"thresholds": {name: 0.123}})
    (row,) = [row for row in table(moved) if row.strategy is strategy]
    assert row.bounds[measurement][0 if above else 1] == 0.123


def test_every_threshold_is_known():
    assert list(THRESHOLDS) == list(vars(DEMO.thresholds))


def test_a_border_can_be_taken_hold_of_where_it_is():
    plane = Map.of(DEMO, 80, 20)
    x, y = plane.place(2.021, 3.0)
    assert grabbed(DEMO, plane, x, y) == ("low_entropy",)
    x, y = plane.place(3.0, 10.91)
    assert grabbed(DEMO, plane, x, y) == ("branch_min_varentropy",)
    x, y = plane.place(5.299, 19.0)
    assert grabbed(DEMO, plane, x, y) == ("branch_max_entropy", "resample_min_entropy")
    assert grabbed(DEMO, plane, *plane.place(3.0, 15.0)) == (), "the middle of a region"
    assert grabbed(DEMO, plane, *plane.place(2.021, 14.0)) == (), "no region ends here"


def test_a_preview_counts_what_would_change():
    steps = [make_step(n, "x") for n in range(3)]
    preview = Preview(steps, [Strategy.ARGMAX, Strategy.ADAPTIVE, Strategy.ARGMAX])
    assert preview.differing == 2
    assert preview.counts(Strategy.ARGMAX) == (0, 2)
    assert preview.counts(Strategy.ADAPTIVE) == (3, 1)


def tune(scenario, size=(120, 40)):
    app = make_viewer()

    async def run(pilot):
        settings = Settings(profile=Profile.load())
        screen = TuneScreen(settings, False, app.workspace.preview)
        await app.push_screen(screen)
        await pilot.pause()
        await scenario(pilot, screen)

    drive(app, run, size)


def drawn(screen, name) -> str:
    return screen.query_one(f"#slider-{name}", Slider).render().plain


def test_text_plane_and_counts_change_together():
    async def scenario(pilot, screen):
        workspace = pilot.app.workspace
        before = workspace.query_one(Strip).visual.spans
        assert drawn(screen, "resample_min_entropy").startswith("■ H >")
        assert drawn(screen, "resample_min_entropy").rstrip().endswith(" 10")
        plane = str(screen.query_one(TuningPlane).visual)
        screen.query_one("#slider-resample_min_entropy", Slider).focus()
        await pilot.press("shift+left", "shift+left", "shift+left", "shift+left")
        assert "10 → " in drawn(screen, "resample_min_entropy")
        assert "would change" in str(screen.query_one("#changes", Label).visual)
        assert str(screen.query_one(TuningPlane).visual) != plane
        assert workspace.query_one(Strip).visual.spans != before
        await pilot.press("escape")
        assert workspace.query_one(Strip).visual.spans == before

    tune(scenario)


@pytest.mark.parametrize("size", [(60, 20), (80, 24), (120, 40), (200, 60)])
def test_the_columns_of_the_sliders_have_headings(size):
    async def scenario(pilot, screen):
        screen.query_one("#slider-resample_min_entropy", Slider).focus()
        await pilot.press(*["shift+left"] * 4)
        slider = screen.query_one("#slider-resample_min_entropy", Slider)
        heading, row = screen.query_one(Headings).render().plain, slider.render().plain
        assert heading.index("at") == row.index(f"{slider.value:5.2f}")
        assert heading.endswith("tokens: was → now")
        assert " → " in row
        assert max(len(heading), len(row)) <= slider.content_size.width, "nothing is cut"

    tune(scenario, size)


def test_a_threshold_without_a_number_is_off():
    slider = Slider("resample_min_entropy", math.inf, 8.0)
    number = Slider("resample_min_entropy", 5.0, 8.0)
    assert "off" in slider.render().plain
    assert "inf" not in slider.render().plain
    assert slider.render().cell_length == number.render().cell_length


def test_a_border_is_dragged_with_the_mouse():
    async def scenario(pilot, screen):
        plane = screen.query_one(TuningPlane)
        x, y = plane.map.place(3.0, 5.0)
        await pilot.mouse_down(TuningPlane, offset=(x + MARGIN_LEFT, y))
        await pilot.hover(TuningPlane, offset=(x + MARGIN_LEFT, y - 4))
        await pilot.mouse_up(TuningPlane, offset=(x + MARGIN_LEFT, y - 4))
        value = plane.map.at(x, y - 4)[1]
        assert screen.query_one("#slider-branch_min_varentropy", Slider).value == round(value, 2)
        await pilot.hover(TuningPlane, offset=(x + MARGIN_LEFT, y - 2))
        assert screen.query_one("#slider-branch_min_varentropy", Slider).value == round(value, 2)

    tune(scenario)


def test_a_slider_follows_the_mouse():
    async def scenario(pilot, screen):
        slider = screen.query_one("#slider-low_entropy", Slider)
        await pilot.mouse_down(slider, offset=(NAME_WIDTH, 0))
        await pilot.hover(slider, offset=(NAME_WIDTH + TRACK_WIDTH - 1, 0))
        await pilot.mouse_up(slider, offset=(NAME_WIDTH + TRACK_WIDTH - 1, 0))
        assert slider.value == round((TRACK_WIDTH - 0.5) / TRACK_WIDTH * 8, 4)

    tune(scenario)


@pytest.mark.parametrize("size", [(20, 5), (60, 20), (80, 24), (200, 60)])
def test_tuning_fits_any_screen(size):
    async def scenario(pilot, screen):
        await pilot.press("right", "down", "right", "escape")

    tune(scenario, size)
