"""The ways of a fork while they are followed: how they grow, and which one leads."""

from __future__ import annotations

import math

from textual.content import Content
from textual.widgets import Static

from entropix_mlx.palette import LOOKS, printable
from entropix_mlx.step import Fork, Strategy

from ..drawing import DIM, bar
from ..styles import COLOURS

BAR_WIDTH = 6
NUMBERS = BAR_WIDTH + 10
"""Cells before the text of a way."""


def draw_race(fork: Fork, width: int) -> Content:
    """Return a line a way: its lead over the first in nats a token, and the end of its text so far.

    The bar shows exp(mean log p): about the mean probability of a token.
    """
    length = max(len(branch.tokens) for branch in fork.branches)
    glyph, following = LOOKS[Strategy.BRANCH].glyph, f"{len(fork.branches)} ways, token {length}"
    heading = f"{glyph} following {following}"
    if len(heading) > width:
        heading = f"{glyph} {following}"
    lines = [Content.styled(heading, COLOURS[Strategy.BRANCH])]
    room = max(1, width - NUMBERS)
    for number, branch in enumerate(fork.branches):
        leads = number == fork.winner
        text = printable(branch.text).replace("\n", "⏎")
        tail = text if len(text) <= room else f"…{text[1 - room :]}"
        style = COLOURS[Strategy.BRANCH] if leads else DIM
        drawn = bar(math.exp(min(0.0, branch.mean_logprob)), 1.0, BAR_WIDTH)
        lead = f" {branch.lead or 0.0:+6.2f} {'▸' if leads else ' '}"
        lines.append(Content.assemble((drawn, style), lead, (tail, style)))
    return Content("\n").join(lines)


class Race(Static):
    """Stands above the gauges while the ways of a fork are followed."""

    DEFAULT_CSS = "Race { height: auto; padding: 0 1; display: none; }"

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._fork: Fork | None = None
        self._lines = 0

    def show(self, fork: Fork | None) -> None:
        """Take what the ways are now, which the next `draw` shows; None ends it at once."""
        self._fork = fork
        if fork is None and self.display:
            self.display = False

    def draw(self) -> None:
        """Draw the ways; the screen is laid out anew only where a fork begins."""
        if self._fork is None:
            return
        width = self.container_size.width - 2
        lines = len(self._fork.branches) + 1
        begins = not self.display or lines != self._lines
        self.display, self._lines = True, lines
        self.update(draw_race(self._fork, width), layout=begins)
