"""How strategies look, and what they are called, in every front end.

A strategy has a glyph, a colour and a state of the model that it stands for.
"""

from __future__ import annotations

import math
from html import escape
from typing import NamedTuple

from .records import printable
from .step import NOT_OF_THE_MODEL, Origin, Step, Strategy

Rgb = tuple[int, int, int]


class Swatch(NamedTuple):
    """The glyph of a strategy, which needs no colour, and its colour (Okabe–Ito palette, RGB)."""

    glyph: str
    rgb: Rgb


SWATCHES = {
    Strategy.ARGMAX: Swatch("●", (0, 158, 115)),
    Strategy.THINK: Swatch("◆", (204, 121, 167)),
    Strategy.THINK_SAMPLE: Swatch("◇", (204, 121, 167)),
    Strategy.BRANCH: Swatch("▲", (230, 159, 0)),
    Strategy.RESAMPLE: Swatch("■", (213, 94, 0)),
    Strategy.ADAPTIVE: Swatch("○", (86, 180, 233)),
    Strategy.SAMPLE: Swatch("·", (153, 153, 153)),
}

MEANINGS = {
    Strategy.ARGMAX: ("sure", "takes the most probable token"),
    Strategy.THINK: ("uncertain", "inserts a thought"),
    Strategy.BRANCH: ("a fork", "follows the top token, or branches"),
    Strategy.RESAMPLE: ("wide open", "resamples at a higher temperature"),
    Strategy.ADAPTIVE: ("mixed", "samples; H and V set the temperature"),
}
"""The state of the model at a strategy, and what the sampler does then."""
SHORT_NAMES = {strategy: state.removeprefix("a ") for strategy, (state, _) in MEANINGS.items()}
"""The state of the model in a word or two: also the name of its region of H and V."""
RARE = frozenset({Strategy.THINK, Strategy.THINK_SAMPLE, Strategy.BRANCH, Strategy.RESAMPLE})
"""Strategies that an answer shows now and then."""
ORIGIN_MARKS = {
    Origin.INSERTED: ("⟦", "⟧", "a thought that was inserted"),
    Origin.RETRIEVED: ("⟬", "⟭", "a passage of your notes"),
    Origin.BRANCH: ("⟨", "⟩", "the winning branch of a fork"),
    Origin.CHOSEN: ("⟪", "⟫", "your choice"),
}
"""Put around tokens that were not sampled in the ordinary way, and what they mean."""
SURPRISES = (
    (6.0, "very surprising", Strategy.RESAMPLE),
    (3.0, "surprising", Strategy.BRANCH),
    (1.0, "a little surprising", Strategy.ADAPTIVE),
)
"""From so many bits of surprise (−log2 p) on: a name, and whose colour it has."""
GRADES = ((0.9, "●", Strategy.ARGMAX), (0.5, "◐", Strategy.BRANCH), (0.0, "○", Strategy.RESAMPLE))
"""From a probability on: the sign that stands before it, and whose colour it has."""
QUESTIONS = (
    "Which is larger, 9.11 or 9.9?",
    "Write a short poem about a lighthouse.",
    "What should I name my cat?",
)
"""What an empty chat offers to ask."""
CONTRAST = 4.5
"""The contrast that WCAG 2 asks for text (level AA)."""

MOST_BITS = 8.0  # an entropy that gets the full colour
_RESET = "\x1b[0m"
_UNDERLINE = "\x1b[4m"


NOT_MEASURED = "not measured"  # in place of NaN: attention that cannot be read in a model


def paint(text: str, strategy: Strategy, underline: bool = False) -> str:
    red, green, blue = SWATCHES[strategy].rgb
    line = _UNDERLINE if underline else ""
    return f"\x1b[38;2;{red};{green};{blue}m{line}{text}{_RESET}"


def step_as_html(step: Step) -> str:
    """Return a step's text for a page without a style sheet: its colour is that of its strategy,
    stronger where entropy is higher; numbers and alternatives appear under the pointer."""
    best = "".join(
        f"\n{math.exp(min(other.logprob, 0)):6.1%}  {other.text!r}" for other in step.top_logprobs
    )
    about = (
        f"{step.strategy}: p {math.exp(min(step.logprob, 0)):.1%}, H {step.entropy:.2f} bits,"
        f" V {step.varentropy:.2f} bits²{best}"
    )
    colour = "rgba({}, {}, {}, {:.2f})".format(
        *SWATCHES[step.strategy].rgb, min(1.0, 0.15 + step.entropy / MOST_BITS)
    )
    text, title = (
        escape(printable(said).encode("utf-8", "replace").decode()) for said in (step.text, about)
    )
    return f'<span title="{title}" style="background: {colour}">{text}</span>'


def paint_step(step: Step) -> str:
    """Return a step's text in its strategy's colour; inserted and retrieved ones are underlined."""
    if not step.text:
        return ""
    return paint(step.text, step.strategy, underline=step.origin in NOT_OF_THE_MODEL)


def contrast(one: Rgb, other: Rgb) -> float:
    """Return the contrast of two colours as WCAG 2 defines it: from 1 to 21."""
    lighter, darker = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: Rgb) -> float:
    """Return the relative luminance (WCAG 2): 0 for black, 1 for white."""
    shares = (value / 255 for value in colour)
    linear = (
        share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares
    )
    return sum(
        weight * share for weight, share in zip((0.2126, 0.7152, 0.0722), linear, strict=True)
    )
