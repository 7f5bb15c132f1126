"""How tokens look: a colour for each strategy, and a style that tells them apart without it."""

from __future__ import annotations

from collections.abc import Sequence

from textual.color import Color
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
COLOURS = {strategy: Style(foreground=Color(*look.rgb)) for strategy, look in LOOKS.items()}
"""For bars and points; an underline would run through them."""
STYLES = {strategy: COLOURS[strategy] + attributes for strategy, attributes in _ATTRIBUTES.items()}
"""For tokens and names."""
_TINTS: dict[Strategy, Style] = {
    strategy: Style(background=Color(*look.rgb, a=0.16))
    for strategy, look in LOOKS.items()
    if strategy not in (Strategy.ADAPTIVE, Strategy.SAMPLE)
}
ORIGIN_MARKS = {
    Origin.INSERTED: ("⟦", "⟧"),
    Origin.RETRIEVED: ("⟬", "⟭"),
    Origin.BRANCH: ("⟨", "⟩"),
    Origin.CHOSEN: ("⟪", "⟫"),
}
"""Put around what did not come from an ordinary draw."""
RARE = frozenset({Strategy.THINK, Strategy.THINK_SAMPLE, Strategy.BRANCH, Strategy.RESAMPLE})
"""Strategies that an answer shows now and then."""
CURSOR = Style(reverse=True)
REASONING = Style(dim=True)
"""What a reasoning model thinks before it answers."""
CHANGED = Style(underline=True)
"""A token whose strategy another threshold would change."""


def tinted(strategy: Strategy) -> Style:
    """Return the ground of a strategy's region: a little of its colour, none of the usual ones'."""
    return _TINTS.get(strategy, Style())


def faded(strategy: Strategy, share: float) -> Style:
    """Return a strategy's colour, mixed with what lies behind it: of share 1, hardly visible."""
    return Style(foreground=Color(*LOOKS[strategy].rgb, a=1 - 0.7 * share))


def marked(text: str, step: Step, previous: Step | None, following: Step | None, glyph: str) -> str:
    """Return a token's text with its glyph, and a mark where an intervention begins or ends.

    Args:
        text: the token's.
        step: whose token it is.
        previous: the step before, if there is one.
        following: the step after, if there is one yet: only then it is known what ends here.
        glyph: put before the text; may be empty.
    """
    opening, closing = ORIGIN_MARKS.get(step.origin, ("", ""))
    before = (opening if previous is None or _parts(previous, step) else "") + glyph
    after = closing if following is not None and _parts(step, following) else ""
    word = text.lstrip(" ")
    # A space belongs before the mark, so that it does not cling to the word before.
    return (text[: len(text) - len(word)] + before + word if word else before + text) + after


def outstanding(steps: Sequence[Step]) -> list[int]:
    """Return the indices of the tokens that stand out: what a user goes to first.

    They are those with which a fork's winner, an inserted or retrieved text or a way that was
    chosen begins, and between these the tokens of a rare strategy.
    """
    found = []
    for index, step in enumerate(steps):
        if step.origin in ORIGIN_MARKS:
            stands_out = not index or _parts(steps[index - 1], step)
        else:
            stands_out = step.strategy in RARE
        if stands_out:
            found.append(index)
    return found


def _parts(left: Step, right: Step) -> bool:
    """Tell whether two neighbours came about differently, or at different forks."""
    return left.origin is not right.origin or right.fork is not None
