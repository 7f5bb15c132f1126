"""A threshold that the arrow keys move, over the tokens that it divides."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message
from textual.style import Style
from textual.widget import Widget

from entropix_mlx.palette import SWATCHES
from entropix_mlx.step import Strategy
from entropix_mlx.traces.scales import SCALES

from ...drawing import DIM, HEIGHTS, runs
from ...styles import COLOURS

NAME_WIDTH, TRACK_WIDTH = 11, 13
SHORTEST_TRACK = 4
NUMBERS = 22
"""Cells of the number with its unit, and of what would change."""
SHARE_STEP, BITS_STEP = 0.02, 0.1
"""The step of a key for a threshold whose scale ends at 1, and for one of bits or bits²."""
HEADINGS = "threshold   all tokens   at  tokens: was → now"
"""Of the columns: the name, the track, the number, and the tokens of the strategy."""
LETTERS = {"entropy": "H", "varentropy": "V", "margin": "margin"}


class Threshold(NamedTuple):
    """One bound of a strategy."""

    strategy: Strategy
    measurement: str
    above: bool
    """Whether the measurement must lie above it."""


THRESHOLDS = {
    "low_entropy": Threshold(Strategy.ARGMAX, "entropy", above=False),
    "low_varentropy": Threshold(Strategy.ARGMAX, "varentropy", above=False),
    "think_min_entropy": Threshold(Strategy.THINK, "entropy", above=True),
    "think_max_varentropy": Threshold(Strategy.THINK, "varentropy", above=False),
    "branch_max_entropy": Threshold(Strategy.BRANCH, "entropy", above=False),
    "branch_min_varentropy": Threshold(Strategy.BRANCH, "varentropy", above=True),
    "branch_max_margin": Threshold(Strategy.BRANCH, "margin", above=False),
    "resample_min_entropy": Threshold(Strategy.RESAMPLE, "entropy", above=True),
    "resample_min_varentropy": Threshold(Strategy.RESAMPLE, "varentropy", above=True),
}
"""The thresholds of a profile by name, in the order of precedence."""


class Slider(Widget, can_focus=True):
    """A threshold: the arrow keys move it, with Shift ten times as far."""

    DEFAULT_CSS = """
    Slider { height: 1; }
    Slider:focus { background: $primary 40%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "move(-1)", "Less"),
        Binding("right", "move(1)", "More"),
        Binding("shift+left", "move(-10)", "Much less", show=False),
        Binding("shift+right", "move(10)", "Much more", show=False),
        Binding("up", "app.focus_previous", show=False),
        Binding("down", "app.focus_next", show=False),
    ]

    class Changed(Message):
        """The threshold moved."""

    def __init__(self, name: str, value: float, most: float) -> None:
        """Begin at a value; one beyond the scale's end, `most`, stays until it is moved down."""
        super().__init__(name=name, id=f"slider-{name}")
        self.threshold = THRESHOLDS[name]
        self.value = value
        self.most = most
        self._measured: list[float] = []
        self._counts = (0, 0)

    def render(self) -> Content:
        strategy, measurement, above = self.threshold
        style = COLOURS[strategy]
        side = ">" if above else "<"
        name = f"{SWATCHES[strategy].glyph} {LETTERS[measurement]} {side}".ljust(NAME_WIDTH)
        number = f" {self.value:5.2f} {SCALES[measurement].unit:6}"
        if math.isinf(self.value):
            number = f"   {'off':{len(number) - 3}}"
        before, after = self._counts
        change = f"{before}" if before == after else f"{before} → {after}"
        emphasis = style if before == after else style + Style(bold=True)
        return Content.assemble((name, style), self._track(style), number, (change, emphasis))

    def show(self, value: float, most: float) -> None:
        self.value, self.most = value, most
        self.refresh()

    def show_tokens(self, measured: Sequence[float], counts: tuple[int, int]) -> None:
        """Show the values of all tokens, and the strategy's counts: as decided, and as changed."""
        self._measured, self._counts = list(measured), counts
        self.refresh()

    def action_move(self, by: int) -> None:
        if by > 0 and self.value >= self.most:
            return
        start = min(max(self.value, 0.0), self.most)
        step = SHARE_STEP if self.most <= 1 else BITS_STEP
        self.value = round(min(max(start + by * step, 0.0), self.most), 4)
        self.refresh()
        self.post_message(self.Changed())

    @property
    def _track_width(self) -> int:
        room = self.content_size.width - NAME_WIDTH - NUMBERS
        return min(max(room, SHORTEST_TRACK), TRACK_WIDTH)

    def _track(self, style: Style) -> Content:
        """Return a histogram of the tokens on the scale, with the threshold among them."""
        tokens = [0] * self._track_width
        for value in self._measured:
            tokens[self._cell(value)] += 1
        highest = max(1, *tokens)
        cells = [
            (HEIGHTS[math.ceil(count / highest * 8)] if count else "·", DIM) for count in tokens
        ]
        if self.value > -math.inf:
            cells[self._cell(self.value)] = ("┃", style)
        return runs(cells)

    def _cell(self, value: float) -> int:
        share = 1.0 if value >= self.most else max(0.0, value / self.most)
        return min(self._track_width - 1, int(share * self._track_width))
