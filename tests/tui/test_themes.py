"""Strategies can be read on every theme."""

from textual.color import Color
from textual.theme import BUILTIN_THEMES

from entropix_mlx import palette
from entropix_mlx.step import Strategy
from entropix_mlx.tui.transcript.answer import TokenBlock
from tests.steps import make_step
from tests.tui.conftest import viewing

THEMES = [name for name in BUILTIN_THEMES if "ansi" not in name.split("-")]
"""The colours of the others are the terminal's own."""


def contrast(one: Color, other: Color) -> float:
    return palette.contrast(one.rgb, other.rgb)


async def test_tokens_are_readable_on_the_screen_in_every_theme():
    async with viewing([make_step(n, f"word{n} ", s) for n, s in enumerate(Strategy)]) as (
        app,
        pilot,
    ):
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
