"""The gauges of a narrow screen: H, V and the strategy of the newest token, in one line."""

from __future__ import annotations

import math
from collections.abc import Sequence

from textual.content import Content
from textual.style import Style

from entropix_mlx.palette import LOOKS
from entropix_mlx.profiles.profile import Profile
from entropix_mlx.step import Step, Strategy

from ..drawing import DIM, bar, scales
from ..styles import COLOURS
from .drawn import Drawn

NUMBERS = 18
"""Cells that both letters and both numbers take."""
NAME = 2 + max(len(strategy) for strategy in Strategy)
"""Cells that the longest strategy takes, with its glyph."""
SHORTEST_BAR = 4


def draw_compact(step: Step | None, profile: Profile, width: int) -> Content:
    """Return H and V of a step as bars, and its strategy: by its glyph alone if it is narrow."""
    named = width >= NUMBERS + NAME + 2 * SHORTEST_BAR
    cells = max(1, (width - NUMBERS - (NAME if named else 1)) // 2)
    parts: list[tuple[str, Style]] = []
    style = COLOURS[step.strategy] if step else DIM
    for name, letter in (("entropy", "H"), ("varentropy", "V")):
        value = step.metrics[name] if step else math.nan
        number = f" {value:5.2f} " if step else "     – "
        drawn = bar(value, scales(profile)[name].most, cells)
        parts += [(f"{letter} ", DIM), (drawn, style), (number, DIM)]
    if step:
        look = LOOKS[step.strategy]
        parts.append((f"{look.glyph} {step.strategy}" if named else look.glyph, style))
    return Content.assemble(*parts)


class Compact(Drawn):
    """Follows the newest token of the answer."""

    def __init__(self, profile: Profile, *, id: str) -> None:
        """Begin with nothing measured."""
        super().__init__(id=id)
        self._profile = profile
        self._newest: Step | None = None

    def on_resize(self) -> None:
        """Draw for the new width."""
        self.draw()

    def show_answer(self, steps: Sequence[Step], profile: Profile) -> None:
        """Show the last step of an answer."""
        self._profile = profile
        self._newest = steps[-1] if steps else None
        self.draw()

    def add_steps(self, steps: Sequence[Step]) -> None:
        """Take more steps of the answer, the last of which the next `draw` shows."""
        self._newest = steps[-1]

    def draw(self) -> None:
        """Draw the line, where it is shown at all."""
        if self.size.width:
            self.draw_content(draw_compact(self._newest, self._profile, self.content_size.width))
