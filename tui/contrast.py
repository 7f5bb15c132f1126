"""Keeps the colours of strategies readable on every theme.

The palette is made for a dark background; on a light one most of its colours have a contrast of
about 2. `ReadableColours` changes a strategy's colour where it is drawn, against the background
that it is drawn on, so that no widget needs to know the theme.
"""

from __future__ import annotations

from functools import lru_cache

from rich.color import Color as RichColor
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter

from entropix_mlx.palette import LOOKS

CONTRAST = 4.5
"""What WCAG 2 asks for text (level AA)."""
STEPS = 20
"""A colour is moved towards black or white in so many steps."""
_STRATEGY_COLOURS = {look.rgb for look in LOOKS.values()}


def contrast(one: Color, other: Color) -> float:
    """Return the contrast of two colours as WCAG 2 defines it: from 1 to 21."""
    lighter, darker = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: Color) -> float:
    """Return the relative luminance (WCAG 2): 0 for black, 1 for white."""
    linear = (
        share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4
        for share in colour.normalized
    )
    return sum(
        weight * share for weight, share in zip((0.2126, 0.7152, 0.0722), linear, strict=True)
    )


@lru_cache(1024)
def readable(colour: Color, background: Color) -> Color:
    """Return a colour, darkened or lightened as little as gives it `CONTRAST` on a background."""
    black, white = Color(0, 0, 0), Color(255, 255, 255)
    end = max(black, white, key=lambda end: contrast(end, background))
    blends = (colour.blend(end, step / STEPS) for step in range(STEPS + 1))
    return next((blend for blend in blends if contrast(blend, background) >= CONTRAST), end)


class ReadableColours(LineFilter):
    """Changes the strategies' colours where they are drawn, and leaves all others."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Return segments with readable colours."""
        return [
            Segment(text, style and _readable_style(style, background), control)
            for text, style, control in segments
        ]


@lru_cache(4096)
def _readable_style(style: Style, background: Color) -> Style:
    """Return a style whose strategy colour, if it has one, is readable; it is not dimmed then."""
    colour, own = style.color, style.bgcolor
    if colour is None or colour.triplet is None or tuple(colour.triplet) not in _STRATEGY_COLOURS:
        return style
    if own is not None:
        if own.triplet is None:  # a colour of the terminal's own, which nobody here knows
            return style
        background = Color.from_rich_color(own)
    changed = readable(Color(*colour.triplet), background)
    return style + Style(color=RichColor.from_rgb(*changed.rgb), dim=False)
