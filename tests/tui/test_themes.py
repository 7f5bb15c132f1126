"""Strategies can be read on every theme."""

import pytest
from textual.color import Color
from textual.theme import BUILTIN_THEMES

from entropix_mlx import palette
from entropix_mlx.palette import SWATCHES
from entropix_mlx.step import Strategy
from entropix_mlx.tui.styles import readable
from entropix_mlx.tui.transcript.answer import TokenBlock
from tests.steps import make_step
from tests.tui.conftest import make_viewer, running

THEMES = [name for name in BUILTIN_THEMES if "ansi" not in name.split("-")]
"""The colours of the others are the terminal's own."""


def contrast(one: Color, other: Color) -> float:
    return palette.contrast(one.rgb, other.rgb)


@pytest.mark.parametrize("name", THEMES)
def test_every_strategy_has_enough_contrast_on_every_surface(name):
    colours = BUILTIN_THEMES[name].to_color_system().generate()
    for surface in ("background", "surface", "panel"):
        behind = Color.parse(colours[surface])
        for swatch in SWATCHES.values():
            assert contrast(readable(Color(*swatch.rgb), behind), behind) >= 4.5


def test_a_colour_that_can_be_read_stays():
    green = Color(*SWATCHES[Strategy.ARGMAX].rgb)
    assert readable(green, Color(18, 18, 18)) == green


async def test_tokens_are_readable_on_the_screen_in_every_theme():
    app = make_viewer([make_step(n, f"word{n} ", s) for n, s in enumerate(Strategy)])
    async with running(app) as pilot:
        for name in THEMES:
            app.theme = name
            await pilot.pause()
            # The region of the tokens, as the terminal gets it.
            region = app.query_one(TokenBlock).region
            strips = app.screen._compositor.render_strips()
            words = [
                segment
                for strip in strips[region.y : region.bottom]
                for segment in strip.crop(region.x, region.right)
                if segment.text.strip()
            ]
            assert len(words) >= len(Strategy)
            for segment in words:
                colours = (
                    Color.from_rich_color(segment.style.color),
                    Color.from_rich_color(segment.style.bgcolor),
                )
                assert contrast(*colours) >= 4.5, (name, segment)
