"""How tokens look: a colour for each strategy, and a style that tells them apart without it."""

from __future__ import annotations

from textual.color import Color
from textual.content import Content
from textual.style import Style

from entropix_mlx.palette import LOOKS
from entropix_mlx.step import Origin, Step, Strategy

_ATTRIBUTES = {
    Strategy.ARGMAX: Style(bold=True),
    Strategy.THINK: Style(italic=True, bold=True),
    Strategy.THINK_SAMPLE: Style(italic=True),
    Strategy.BRANCH: Style(underline=True),
    Strategy.RESAMPLE: Style(underline=True, bold=True),
    Strategy.ADAPTIVE: Style(),
    Strategy.SAMPLE: Style(dim=True),
}
STYLES = {
    strategy: Style(foreground=Color(*LOOKS[strategy].rgb)) + attributes
    for strategy, attributes in _ATTRIBUTES.items()
}
ORIGIN_MARKS = {Origin.INSERTED: "⟦", Origin.BRANCH: "⟨", Origin.CHOSEN: "⟪"}
"""Put before the first token of what did not come from an ordinary draw."""
CURSOR = Style(reverse=True)
CHANGED = Style(strike=True)
"""A token whose strategy another threshold would change."""


def legend() -> Content:
    """Return every strategy as its tokens look, and the marks."""
    names = [
        Content.styled(f"{LOOKS[s].glyph} {s}", STYLES[s]) for s in Strategy if s != Strategy.SAMPLE
    ]
    marks = "  ".join(f"{mark} {origin}" for origin, mark in ORIGIN_MARKS.items())
    return Content("  ").join(names) + Content(f"\n{marks}")


def origin_mark(step: Step, previous: Step | None) -> str:
    """Return the mark to put before a token, if something else than a draw begins there."""
    begins = previous is None or previous.origin is not step.origin or step.branch is not None
    return ORIGIN_MARKS.get(step.origin, "") if begins else ""
