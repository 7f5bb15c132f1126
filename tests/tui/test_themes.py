"""Strategies can be read on every theme."""

import pytest
from textual.color import Color
from textual.theme import BUILTIN_THEMES
from textual.widget import Widget

from entropix_mlx.palette import SWATCHES
from entropix_mlx.step import Strategy
from entropix_mlx.tui.containers import Blank
from entropix_mlx.tui.styles import readable
from entropix_mlx.tui.transcript.answer import TokenBlock
from tests.steps import make_step
from tests.tui.conftest import make_viewer, running

THEMES = [name for name in BUILTIN_THEMES if "ansi" not in name.split("-")]
"""The colours of the others are the terminal's own."""


def contrast(one: Color, other: Color) -> float:
    """WCAG 2.2, spelt out."""

    def luminance(colour):
        values = [v / 255 for v in colour.rgb]
        r, g, b = (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


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


async def test_empty_grounds_look_as_textual_draws_them():
    app = make_viewer([make_step(n, "word ") for n in range(5)])

    def ground(strips) -> set[str]:
        return {str(cell.style.bgcolor) for strip in strips for cell in strip}

    async with running(app) as pilot:
        for name in ("textual-dark", "textual-light", "dracula"):
            app.theme = name
            await pilot.pause(0.1)
            blanks = [w for w in [app.screen, *app.query("*")] if isinstance(w, Blank) and w.size]
            assert len(blanks) >= 6
            for widget in blanks:
                crop = widget.size.region
                assert ground(widget.render_lines(crop)) == ground(
                    Widget.render_lines(widget, crop)
                )


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
