"""The gauges of a narrow screen: H, V and the strategy of the newest token, in one line."""

from __future__ import annotations

import math
from collections.abc import Sequence

from textual.content import Content
from textual.style import Style
from textual.widgets import Static

from entropix_mlx.palette import LOOKS
from entropix_mlx.profiles.profile import Profile
from entropix_mlx.step import Step

from ..drawing import DIM, SCALES, bar
from ..styles import STYLES


def draw_compact(step: Step | None, width: int) -> Content:
    """Return H and V of a step as bars, and its strategy."""
    cells = max(4, (width - 34) // 2)
    parts: list[Content | tuple[str, Style]] = []
    for name, letter in (("entropy", "H"), ("varentropy", "V")):
        value = step.metrics[name] if step else math.nan
        style = STYLES[step.strategy] if step else DIM
        parts += [
            (f"{letter} ", DIM),
            (bar(value, SCALES[name].most, cells), style),
            Content(f" {value:5.2f} " if step else "     – "),
        ]
    if step:
        parts.append((f"{LOOKS[step.strategy].glyph} {step.strategy}", STYLES[step.strategy]))
    return Content.assemble(*parts)


class Compact(Static):
    """Follows the newest token of the answer."""

    def __init__(self, *, id: str) -> None:
        """Begin with nothing measured."""
        super().__init__(id=id)
        self._newest: Step | None = None

    def on_resize(self) -> None:
        """Draw for the new width."""
        self.draw()

    def show_answer(self, steps: Sequence[Step], profile: Profile) -> None:
        """Show the last step of an answer."""
        self._newest = steps[-1] if steps else None
        self.draw()

    def add_steps(self, steps: Sequence[Step]) -> None:
        """Take more steps of the answer, the last of which the next `draw` shows."""
        self._newest = steps[-1]

    def draw(self) -> None:
        """Draw the line, where it is shown at all."""
        if self.size.width:
            self.update(draw_compact(self._newest, self.content_size.width), layout=False)
