"""The gauges that are one line below the text: the newest values, and the whole answer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from textual import events
from textual.content import Content
from textual.message import Message
from textual.style import Style

from entropix_mlx.palette import RARE, SHORT_NAMES, SWATCHES
from entropix_mlx.profiles.profile import Profile
from entropix_mlx.step import Step, Strategy

from ..drawing import DIM, HEIGHTS, bar, runs, scales
from ..styles import COLOURS
from .drawn import Drawn
from .gauges import LiveValues

NUMBERS = 18
"""Cells that both letters and both numbers take."""
NAME = 2 + max(len(strategy) for strategy in Strategy)
"""Cells that the longest strategy takes, with its glyph."""
WIDEST = 4
"""Cells that a token takes at most in a timeline."""
SHORTEST = 4
"""Cells of a bar at least."""
NOTABLE = (
    Strategy.BRANCH,
    Strategy.RESAMPLE,
    Strategy.THINK,
    Strategy.THINK_SAMPLE,
    Strategy.ADAPTIVE,
    Strategy.SAMPLE,
    Strategy.ARGMAX,
)
"""Where several tokens share a cell, its colour is that of the first of these among them."""
_POINTED = {strategy: colour + Style(reverse=True) for strategy, colour in COLOURS.items()}
_EMPTY = Style()


class Compact(Drawn):
    """The gauges of a narrow screen: H, V and the strategy of the newest token.

    At the end of an answer they show its averages, and the shares of the strategies.
    """

    def __init__(self, profile: Profile, *, id: str) -> None:
        super().__init__(id=id)
        self._profile = profile
        self._values = LiveValues()
        self.has_thresholds = True
        """See `draw_compact`."""

    def show_answer(self, steps: Sequence[Step], profile: Profile) -> None:
        self._profile = profile
        self._values = LiveValues(steps)
        self.draw()

    def add_steps(self, steps: Sequence[Step]) -> None:
        self._values.add(steps)

    def draw(self) -> None:
        if self.size.width:
            width = self.content_size.width
            self.draw_content(draw_compact(self._values, self._profile, width, self.has_thresholds))


def draw_compact(
    live: LiveValues, profile: Profile, width: int, has_thresholds: bool = True
) -> Content:
    """Return H and V as bars, and the strategy, of the newest token; at the end, of the answer.

    Names are left out where the width is too small, and where no thresholds decided.
    """
    endings = _endings(live, has_thresholds)
    ending = next(
        (line for line in endings if width >= NUMBERS + line.cell_length + 2 * SHORTEST),
        endings[-1],
    )
    cells = max(1, (width - NUMBERS - ending.cell_length) // 2)
    values, parts = live.values, []
    for name, letter in (("entropy", "H"), ("varentropy", "V")):
        number = f" {values[name]:5.2f} " if values else "     – "
        drawn = bar(values.get(name, math.nan), scales(profile)[name].most, cells)
        parts.append(Content.assemble((f"{letter} ", DIM), (drawn, live.style), (number, DIM)))
    return Content().join([*parts, ending])


def _endings(live: LiveValues, has_thresholds: bool) -> list[Content]:
    """Return the strategy, or the shares of all, from a long text to a short one."""
    if live.step is not None:
        strategy = live.step.strategy
        texts = (f"{SWATCHES[strategy].glyph} {strategy}".ljust(NAME), SWATCHES[strategy].glyph)
        return [Content.styled(text, COLOURS[strategy]) for text in texts]
    shares = [(strategy, live.counts[strategy] / live.tokens) for strategy in live.counts]
    shares.sort(key=lambda share: -share[1])
    most = len(shares) if has_thresholds else 0
    return [
        *(_shares(shares, named) for named in range(most, -1, -1)),
        Content.styled("mean", DIM),
    ]


def _shares(shares: list[tuple[Strategy, float]], named: int) -> Content:
    """Return glyphs and percentages; of the first ones, so many, also the state of the model."""
    parts = []
    for number, (strategy, share) in enumerate(shares):
        name = SHORT_NAMES.get(strategy, "") if number < named else ""
        text = " ".join(filter(None, (SWATCHES[strategy].glyph, name, f"{share:.0%}")))
        parts.append(Content.styled(text, COLOURS[strategy]))
    return Content(" ").join(parts)


class Strip(Drawn):
    """The whole answer in a line: its height is H, its colour the strategy."""

    @dataclass
    class Clicked(Message):
        """The user asks for a token."""

        index: int

    _indent = 0
    """Cells before the first token."""

    def __init__(self, profile: Profile, *, id: str) -> None:
        super().__init__(id=id)
        self._profile = profile
        self._wide = 1  # cells of a column
        self._tokens: list[tuple[float, Strategy]] = []
        self._cells: Cells | None = None  # None where everything is to be drawn again
        self._pointed: int | None = None

    def show_answer(self, steps: Sequence[Step], profile: Profile) -> None:
        self._profile = profile
        self.show_strategies(steps, [step.strategy for step in steps])

    def show_strategies(self, steps: Sequence[Step], strategies: Sequence[Strategy]) -> None:
        entropies = [step.entropy for step in steps]
        self._tokens = list(zip(entropies, strategies, strict=True))
        self._cells = None
        self.draw()

    def add_steps(self, steps: Sequence[Step]) -> None:
        new = [(step.entropy, step.strategy) for step in steps]
        self._tokens += new
        if self._cells is not None:
            self._cells.add(new)

    def point(self, index: int | None) -> None:
        self._pointed = index
        self.draw()

    def on_resize(self) -> None:
        self._cells = None

    def on_click(self, event: events.Click) -> None:
        """Report the token where the user clicked: of several, the first."""
        offset = event.get_content_offset(self)
        if offset is None or self._cells is None:
            return
        index = (offset.x - self._indent) // self._wide * self._cells.size
        if 0 <= index < len(self._tokens):
            self.post_message(self.Clicked(index))

    def draw(self) -> None:
        width = self.content_size.width - self._indent
        if width <= 0:
            return
        if self._cells is None:
            self._cells = Cells(width)
            self._cells.add(self._tokens)
        self.draw_content(self._drawn(self._cells, scales(self._profile)["entropy"].most))

    def _drawn(self, cells: Cells, most: float) -> Content:
        return draw_strip(cells, most, self._pointed)


class Timeline(Strip):
    """The same over many lines, under a short answer: with a scale, and marks above the columns."""

    _indent = 4

    def _drawn(self, cells: Cells, most: float) -> Content:
        lines, tokens = self.content_size.height - 2, len(self._tokens)
        if lines < 1 or not tokens:
            return Content()
        width = self.content_size.width - self._indent
        self._wide = max(1, min(WIDEST, width // len(cells.heights)))
        columns = draw_columns(cells, most, lines, self._wide, self._pointed)
        edges = ["    ", f"{most:3.0f}▏", "  H▏", *["   ▏"] * lines][: lines + 1]
        rows = [Content.styled(e, DIM) + row for e, row in zip(edges, columns, strict=True)]
        length = len(cells.heights) * self._wide
        last = str(tokens)
        axis = f"1{' tokens · H in bits '.center(max(0, length - 1 - len(last)))}{last}"
        return Content("\n").join([*rows, Content.styled(f"    {axis}"[: width + 4], DIM)])


class Cells:
    """An answer in at most so many cells, each of as many tokens as that takes.

    Tokens can be added without looking at those before, until a cell must hold more of them.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._tokens: list[tuple[float, Strategy]] = []
        self.size = 1
        """Tokens of a cell."""
        self.heights: list[float] = []
        """The highest H of each cell, in bits."""
        self.strategies: list[Strategy] = []
        """The most notable strategy of each cell."""

    def add(self, tokens: Iterable[tuple[float, Strategy]]) -> None:
        first = len(self._tokens)
        self._tokens += tokens
        size = max(1, -(-len(self._tokens) // self._width))
        if size != self.size:
            self.size, first = size, 0
            self.heights, self.strategies = [], []
        for index in range(first, len(self._tokens)):
            entropy, strategy = self._tokens[index]
            if index % self.size:
                self.heights[-1] = max(self.heights[-1], entropy)
                self.strategies[-1] = min(self.strategies[-1], strategy, key=NOTABLE.index)
            else:
                self.heights.append(entropy)
                self.strategies.append(strategy)


def draw_strip(cells: Cells, most: float, cursor: int | None = None) -> Content:
    """Return an answer in a line; `most` is the H of a full cell, in bits."""
    at = None if cursor is None else cursor // cells.size
    return runs(
        (
            HEIGHTS[min(8, max(1, round(height / most * 8)))],
            _POINTED[strategy] if cell == at else COLOURS[strategy],
        )
        for cell, (height, strategy) in enumerate(zip(cells.heights, cells.strategies, strict=True))
    )


def draw_columns(
    cells: Cells, most: float, lines: int, wide: int, cursor: int | None = None
) -> list[Content]:
    """Return the marks of rare strategies, and below them H as columns over so many lines."""
    at = None if cursor is None else cursor // cells.size
    columns = list(zip(cells.heights, cells.strategies, strict=True))
    marks = (((SWATCHES[s].glyph if s in RARE else "").ljust(wide), COLOURS[s]) for _, s in columns)
    drawn = [runs(marks)]
    for line in range(lines):
        below = (lines - 1 - line) * 8
        cells_of_line = []
        for column, (height, strategy) in enumerate(columns):
            level = max(0 if below else 1, round(height / most * lines * 8) - below)
            colour = COLOURS[strategy] if level > 0 else _EMPTY
            style = _POINTED[strategy] if column == at else colour
            cells_of_line.append((HEIGHTS[min(8, level)] * wide, style))
        drawn.append(runs(cells_of_line))
    # A line to which only empty cells are added is the same line, which is not drawn again.
    return [line if at is not None else line.rstrip() for line in drawn]
