"""The gauges of a narrow screen: H, V and the strategy of the newest token, in one line;
at its end those of the answer."""

from __future__ import annotations

import math
from collections.abc import Sequence

from textual.content import Content

from entropix_mlx.palette import LOOKS
from entropix_mlx.profiles.profile import Profile
from entropix_mlx.step import Step, Strategy

from ..drawing import DIM, bar, scales
from ..help_text import SHORT_NAMES
from ..styles import COLOURS
from .drawn import Drawn
from .gauge_values import Newest

NUMBERS = 18
"""Cells that both letters and both numbers take."""
NAME = 2 + max(len(strategy) for strategy in Strategy)
"""Cells that the longest strategy takes, with its glyph."""
SHORTEST = 4
"""Cells of a bar at least."""


def draw_compact(newest: Newest, profile: Profile, width: int, meant: bool = True) -> Content:
    """Return H and V as bars, and the strategy, of the newest token; at the end, of the answer.

    Args:
        newest: what to show.
        profile: on whose scales.
        width: in cells; where they are few, names are left out.
        meant: whether thresholds decided, so that a strategy tells how sure the model was.
    """
    tellings = _tellings(newest, meant)
    told = next(
        (line for line in tellings if width >= NUMBERS + line.cell_length + 2 * SHORTEST),
        tellings[-1],
    )
    cells = max(1, (width - NUMBERS - told.cell_length) // 2)
    values, parts = newest.values, []
    for name, letter in (("entropy", "H"), ("varentropy", "V")):
        number = f" {values[name]:5.2f} " if values else "     – "
        drawn = bar(values.get(name, math.nan), scales(profile)[name].most, cells)
        parts.append(Content.assemble((f"{letter} ", DIM), (drawn, newest.style), (number, DIM)))
    return Content().join([*parts, told])


def _tellings(newest: Newest, meant: bool) -> list[Content]:
    """Return what is said of the strategy, or of the shares of all, from long to short."""
    if newest.step is not None:
        strategy = newest.step.strategy
        texts = (f"{LOOKS[strategy].glyph} {strategy}".ljust(NAME), LOOKS[strategy].glyph)
        return [Content.styled(text, COLOURS[strategy]) for text in texts]
    shares = [(strategy, newest.counts[strategy] / newest.tokens) for strategy in newest.counts]
    shares.sort(key=lambda share: -share[1])
    most = len(shares) if meant else 0
    tellings = [_shares(shares, named) for named in range(most, -1, -1)]
    return [*tellings, Content.styled("mean", DIM)]


def _shares(shares: list[tuple[Strategy, float]], named: int) -> Content:
    """Return glyphs and percentages, and of the first ones, so many, also what they stand for."""
    parts = []
    for number, (strategy, share) in enumerate(shares):
        name = SHORT_NAMES.get(strategy, "") if number < named else ""
        text = " ".join(filter(None, (LOOKS[strategy].glyph, name, f"{share:.0%}")))
        parts.append(Content.styled(text, COLOURS[strategy]))
    return Content(" ").join(parts)


class Compact(Drawn):
    """Follows the newest token of the answer."""

    def __init__(self, profile: Profile, *, id: str) -> None:
        super().__init__(id=id)
        self._profile = profile
        self._newest = Newest()
        self.meant = True
        """See `draw_compact`."""

    def on_resize(self) -> None:
        """Draw for the new width."""
        self.draw()

    def show_answer(self, steps: Sequence[Step], profile: Profile) -> None:
        """Show the means of an answer."""
        self._profile = profile
        self._newest = Newest(steps)
        self.draw()

    def add_steps(self, steps: Sequence[Step]) -> None:
        """Take more steps of the answer, the last of which the next `draw` shows."""
        self._newest.add(steps)

    def draw(self) -> None:
        """Draw the line, where it is shown at all."""
        if self.size.width:
            width = self.content_size.width
            self.draw_content(draw_compact(self._newest, self._profile, width, self.meant))
