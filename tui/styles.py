"""The look of tokens: a colour for each strategy, and a style that differs without it.

The palette is made for a dark background; on a light one most of its colours have a contrast of
about 2. `ReadableColours` changes a strategy's colour where it is drawn, against the background
that it is drawn on, so that no widget needs to know the theme.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from functools import lru_cache

from rich.color import Color as RichColor
from rich.segment import Segment
from rich.style import Style as RichStyle
from textual.color import Color
from textual.content import Content
from textual.filter import LineFilter
from textual.style import Style

from entropix_mlx import palette
from entropix_mlx.palette import CONTRAST, ORIGIN_MARKS, RARE, SWATCHES, contrast
from entropix_mlx.step import NOT_OF_THE_MODEL, Step, Strategy

_ATTRIBUTES = {
    Strategy.ARGMAX: Style(bold=True),
    Strategy.THINK: Style(italic=True, bold=True),
    Strategy.THINK_SAMPLE: Style(italic=True),
    Strategy.BRANCH: Style(underline=True),
    Strategy.RESAMPLE: Style(underline=True, bold=True),
    Strategy.ADAPTIVE: Style(),
    Strategy.SAMPLE: Style(dim=True),
}
COLOURS = {strategy: Style(foreground=Color(*swatch.rgb)) for strategy, swatch in SWATCHES.items()}
"""For bars and points; an underline would run through them."""
STYLES = {strategy: COLOURS[strategy] + attributes for strategy, attributes in _ATTRIBUTES.items()}
"""For names."""
_TINTED = {Strategy.ARGMAX: 0.1, Strategy.ADAPTIVE: 0.18}
"""Ordinary strategies: how much of their colour lies behind a token."""
_TOKENS = (
    STYLES
    | {
        strategy: Style(background=Color(*SWATCHES[strategy].rgb, a=share))
        for strategy, share in _TINTED.items()
    }
    | {Strategy.SAMPLE: Style()}
)
"""For tokens: only rare strategies have the full colour, so that the text is quiet."""
_TINTS: dict[Strategy, Style] = {
    strategy: Style(background=Color(*swatch.rgb, a=0.16))
    for strategy, swatch in SWATCHES.items()
    if strategy not in (Strategy.ADAPTIVE, Strategy.SAMPLE)
}
CURSOR = Style(reverse=True)
_SURPRISES = {
    Strategy.RESAMPLE: STYLES[Strategy.RESAMPLE],
    Strategy.BRANCH: STYLES[Strategy.BRANCH],
    Strategy.ADAPTIVE: COLOURS[Strategy.ADAPTIVE] + Style(italic=True),
}
SURPRISES = tuple((least, _SURPRISES[strategy]) for least, _, strategy in palette.SURPRISES)
"""From so many bits of surprise on: the style of the token."""
UNDERLINES = (
    (5.0, Style(underline2=True, bold=True)),
    (3.5, Style(underline2=True)),
    (2.0, Style(underline=True)),
)
"""From so many bits of H on: an underline. Rich knows no dotted one."""
REASONING = Style(dim=True)
"""The `<think>` block of a reasoning model."""
CHANGED = Style(underline=True)
"""A token whose strategy another threshold would change."""
LOOKED_AT, NAMED = Style(bold=True, underline=True), 3
"""The tokens that got most of a token's attention, and how many of them there are."""
SHADES = (0.1, 0.25, 0.5)
"""Shares of the largest attention from which on the shade of a token is darker."""
UNSURE = 0.2
"""A token of less probability is an unsure place."""
BLENDS = 20
"""A colour is moved towards black or white in so many steps."""
_STRATEGY_COLOURS = {swatch.rgb for swatch in SWATCHES.values()}


class Colouring(StrEnum):
    """What the colour of a token shows."""

    STRATEGY = "strategy"
    SURPRISE = "surprise"
    NONE = "none"
    UNDERLINE = "underline"
    """No colour, but H as an underline."""
    GLYPHS = "glyphs"
    """As for `STRATEGY`, with a glyph before each token."""

    @property
    def following(self) -> Colouring:
        every = list(Colouring)
        return every[(every.index(self) + 1) % len(every)]


def token_style(step: Step, strategy: Strategy, colouring: Colouring) -> Style:
    match colouring:
        case Colouring.STRATEGY | Colouring.GLYPHS:
            return _TOKENS[strategy]
        case Colouring.SURPRISE:
            bits = -step.logprob / math.log(2)
            return next((style for least, style in SURPRISES if bits >= least), Style())
        case Colouring.UNDERLINE:
            return next((style for least, style in UNDERLINES if step.entropy >= least), Style())
        case Colouring.NONE:
            return Style()


def tinted(strategy: Strategy) -> Style:
    """Return the background of a strategy's region: a little of its colour, if it is a rare one."""
    return _TINTS.get(strategy, Style())


def most_looked_at(shares: Sequence[float]) -> list[int]:
    """Return the tokens by their shares of attention, the largest first.

    The first token is left out: models give it the attention that they have no use for.
    """
    return sorted(range(1, len(shares)), key=lambda index: -shares[index])


def looked_at(shares: Sequence[float]) -> list[Style]:
    """Return how tokens look by their shares of attention; the largest also without colour."""
    styles, ordered = [Style()] * len(shares), most_looked_at(shares)
    for rank, index in enumerate(ordered):
        level = sum(shares[index] > least * shares[ordered[0]] for least in SHADES)
        if level:
            shade = Style(background=Color(*SWATCHES[Strategy.ADAPTIVE].rgb, a=0.15 * level))
            styles[index] = shade + (LOOKED_AT if rank < NAMED else Style())
    return styles


def faded(strategy: Strategy, share: float) -> Style:
    """Return a strategy's colour, mixed with what lies behind it: of share 1, hardly visible."""
    return Style(foreground=Color(*SWATCHES[strategy].rgb, a=1 - 0.7 * share))


def marked(text: str, step: Step, previous: Step | None, following: Step | None, glyph: str) -> str:
    """Return a token's text with its glyph, and a mark where an intervention begins or ends.

    Where it ends is known only once there is a following step, or at the end of the answer.
    """
    opening, closing, _ = ORIGIN_MARKS.get(step.origin, ("", "", ""))
    before = (opening if previous is None or _differ(previous, step) else "") + glyph
    ends = step.finish_reason if following is None else _differ(step, following)
    after = closing if ends else ""
    word = text.lstrip(" ")
    # A space belongs before the mark, so that it does not cling to the word before.
    return (text[: len(text) - len(word)] + before + word if word else before + text) + after


def notable(steps: Sequence[Step]) -> list[int]:
    """Return the indices of the unsure places: those that a user goes to first.

    They are those with which the winning branch of a fork, an inserted or retrieved text or the
    user's choice begins, and between these the tokens of a rare strategy and those whose
    probability was less than `UNSURE`.
    """
    return [
        index
        for index, step in enumerate(steps)
        if (
            not index or _differ(steps[index - 1], step)
            if step.origin in ORIGIN_MARKS
            else step.strategy in RARE or step.logprob < math.log(UNSURE)
        )
    ]


def least_sure(steps: Sequence[Step]) -> int | None:
    """Return the unsure place whose token the model drew with the smallest probability."""
    drawn = [index for index in notable(steps) if steps[index].origin not in NOT_OF_THE_MODEL]
    return min(drawn, key=lambda index: steps[index].logprob, default=None)


def _differ(left: Step, right: Step) -> bool:
    return left.origin is not right.origin or right.fork is not None


@lru_cache(1024)
def readable(colour: Color, background: Color) -> Color:
    """Return a colour, darkened or lightened as little as gives it `CONTRAST` on a background."""
    black, white = Color(0, 0, 0), Color(255, 255, 255)
    end = max(black, white, key=lambda end: contrast(end.rgb, background.rgb))
    blends = (colour.blend(end, step / BLENDS) for step in range(BLENDS + 1))
    return next((one for one in blends if contrast(one.rgb, background.rgb) >= CONTRAST), end)


class ReadableColours(LineFilter):
    """Changes the colours of strategies and of tokens where they are drawn, and no others."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [
            Segment(text, style and _readable_style(style, background), control)
            for text, style, control in segments
        ]


@lru_cache(4096)
def _readable_style(style: RichStyle, background: Color) -> RichStyle:
    """Return a style whose colour is readable if it is a strategy's or a token's, on its tint.

    A strategy's colour is not dimmed.
    """
    colour, own = style.color, style.bgcolor
    if colour is None or colour.triplet is None:
        # A tint was mixed with a background that nobody here knows.
        tinted_default = own is not None and own.triplet is not None and "step" in style.meta
        return style + RichStyle(bgcolor="default") if tinted_default else style
    has_strategy_colour = tuple(colour.triplet) in _STRATEGY_COLOURS
    if not has_strategy_colour and "step" not in style.meta:
        return style
    if own is not None:
        if own.triplet is None:  # a colour of the terminal's own, which nobody here knows
            return style
        background = Color.from_rich_color(own)
    changed = readable(Color(*colour.triplet), background)
    dim = False if has_strategy_colour else None  # None leaves it as it is
    return style + RichStyle(color=RichColor.from_rgb(*changed.rgb), dim=dim)


def grade(probability: float) -> tuple[str, Style]:
    return next((sign, COLOURS[s]) for least, sign, s in palette.GRADES if probability >= least)


def graded(probability: float) -> Content:
    sign, style = grade(probability)
    return Content.styled(f"{sign} {probability:4.0%}", style)
