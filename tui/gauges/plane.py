"""The map of entropy and varentropy: its regions, the answer's tokens, the newest on top.

H runs to the right and V up. The regions are those of the decision function, for tokens whose
margin allows a fork. Every token leaves a dot; the last ones stand as their strategy's glyph and
fade with age.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from functools import cache
from typing import NamedTuple

from textual.content import Content
from textual.style import Style

from entropix_mlx.palette import SHORT_NAMES, SWATCHES
from entropix_mlx.profiles.profile import Profile
from entropix_mlx.profiles.tree import first_fit, table
from entropix_mlx.step import NOT_OF_THE_MODEL, Metrics, Step, Strategy
from entropix_mlx.traces.scales import fitting_scales

from ..answer import Answer
from ..drawing import DIM, OVERFLOW, Drawn, runs
from ..styles import COLOURS, faded, tinted

NAMES: dict[Strategy, tuple[str, ...]] = {
    **{strategy: (name,) for strategy, name in SHORT_NAMES.items()},
    Strategy.THINK: (f"{SHORT_NAMES[Strategy.THINK]} → think", SHORT_NAMES[Strategy.THINK]),
    Strategy.RESAMPLE: (SHORT_NAMES[Strategy.RESAMPLE], "open"),
}
"""The names of the regions; the first one that fits is used."""
TRAIL = 12
"""So many of the last tokens stand as glyphs."""
MARGIN_LEFT = 4
"""Cells of the vertical axis."""
SMALLEST = (16, 4)
"""Columns and lines below which there is no map."""
HOLLOW = {Strategy.THINK: "◇", Strategy.BRANCH: "△", Strategy.RESAMPLE: "□", Strategy.ARGMAX: "○"}
"""The glyphs of tokens that were inserted: they were not sampled."""
_CORNERS = " ╶╵└╴─┘┴╷┌│├┐┬┤┼"
"""Box-drawing characters by the arms that they have: right 1, up 2, left 4, down 8."""
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""The bits of a braille character's dots, by line and column."""

Cell = tuple[str, Strategy, Style]
"""A character, the region that it lies in, and its style."""
Mark = tuple[Step, Strategy]
"""A token, and the strategy in whose colour it is shown."""


class Map(NamedTuple):
    """The scales of a plane of so many columns and lines of cells."""

    columns: int
    lines: int
    most_h: float
    most_v: float

    @classmethod
    def of(cls, profile: Profile, columns: int, lines: int) -> Map:
        """Return a map whose scales hold a profile's thresholds."""
        fitting = fitting_scales(profile)
        return cls(columns, lines, fitting["entropy"].most, fitting["varentropy"].most)

    def place(self, entropy: float, varentropy: float, fine: int = 1) -> tuple[int, int]:
        """Return the column and line of a point, from the top left; beyond a scale, at its edge.

        With `fine` of 2 they count braille dots: a cell has two columns and four lines of them.
        """
        columns, lines = self.columns * fine, self.lines * fine * fine
        x = min(columns - 1, max(0, int(entropy / self.most_h * columns)))
        y = min(lines - 1, max(0, int(varentropy / self.most_v * lines)))
        return x, lines - 1 - y

    def at(self, column: int, line: int) -> tuple[float, float]:
        return (
            (column + 0.5) / self.columns * self.most_h,
            (self.lines - line - 0.5) / self.lines * self.most_v,
        )


class Background(NamedTuple):
    """The regions of a plane and their names, without any token."""

    plane: Map
    cells: list[list[Cell]]
    names: dict[tuple[int, int], Cell]
    """The letters of the regions' names, by column and line."""

    @classmethod
    def of(cls, profile: Profile, plane: Map) -> Background:
        """Return tinted regions with their borders, and each name in the middle of its region."""
        found = regions(profile, plane)
        cells = [
            [
                (_corner(found, column, line), strategy, _style(strategy))
                for column, strategy in enumerate(strategies)
            ]
            for line, strategies in enumerate(found)
        ]
        names: dict[tuple[int, int], Cell] = {}
        for strategy, candidates in NAMES.items():
            names |= _name_cells(found, strategy, candidates)
        return cls(plane, cells, names)


def regions(profile: Profile, plane: Map) -> list[list[Strategy]]:
    """Return the strategy in the middle of each cell, for a margin that allows a fork."""
    rows, rest = table(profile), (0.0,) * (len(Metrics._fields) - 2)
    return [
        [
            first_fit(rows, Metrics(*plane.at(column, line), *rest))
            for column in range(plane.columns)
        ]
        for line in range(plane.lines)
    ]


def _corner(found: list[list[Strategy]], column: int, line: int) -> str:
    """Return the border at the lower left corner of a cell; at the edges, borders go on."""
    left, below = max(0, column - 1), min(len(found) - 1, line + 1)
    here, beside = found[line][column], found[line][left]
    under, across = found[below][column], found[below][left]
    arms = (here is not under, here is not beside, beside is not across, under is not across)
    return _CORNERS[sum(arm << place for place, arm in enumerate(arms))]


def _name_cells(
    found: list[list[Strategy]], strategy: Strategy, candidates: Sequence[str]
) -> dict[tuple[int, int], Cell]:
    """Return the letters of the first name that fits into a strategy's region, in its middle."""
    spans = [
        (len(span), line, span[0])
        for line, strategies in enumerate(found)
        for same, group in itertools.groupby(range(len(strategies)), key=strategies.__getitem__)
        if same is strategy and (span := list(group))
    ]
    widest = [span for span in spans if span[0] == max(spans)[0]]
    name = next((name for name in candidates if widest and len(name) + 2 <= widest[0][0]), None)
    if name is None:
        return {}
    length, line, start = widest[(len(widest) - 1) // 2]
    first = start + (length - len(name) + 1) // 2
    style = _style(strategy, strategy)
    return {(first + n, line): (letter, strategy, style) for n, letter in enumerate(name)}


def within(cells: list[list[Cell]], strategy: Strategy, column: int, line: int) -> tuple[int, int]:
    """Return the place of a token; on a border, the cell beside it that is its strategy's."""
    for x, y in ((column, line), (column, line - 1), (column, line + 1), (column + 1, line)):
        if 0 <= y < len(cells) and 0 <= x < len(cells[y]) and cells[y][x][1] is strategy:
            return x, y
    return column, line


class Cloud:
    """A dot for each token of an answer, above the regions."""

    def __init__(self, background: Background) -> None:
        self.background = background
        self.plane = background.plane
        self.cells: dict[tuple[int, int], tuple[int, Strategy]] = {}
        """By column and line: the braille dots, and the strategy of the last token there."""
        self.beyond_h = self.beyond_v = False
        """Whether a token lies beyond the scale."""
        self.tokens = 0

    def add(self, steps: Iterable[Step], strategies: Iterable[Strategy]) -> None:
        for step, strategy in zip(steps, strategies, strict=True):
            self.tokens += 1
            x, y = self.plane.place(step.entropy, step.varentropy, fine=2)
            cell = x // 2, y // 4
            dots, _ = self.cells.get(cell, (0, strategy))
            self.cells[cell] = dots | _DOTS[y % 4][x % 2], strategy
            self.beyond_h |= step.entropy > self.plane.most_h
            self.beyond_v |= step.varentropy > self.plane.most_v


def glyph(step: Step, strategy: Strategy) -> str:
    if step.origin in NOT_OF_THE_MODEL:
        return HOLLOW.get(strategy, SWATCHES[strategy].glyph)
    return SWATCHES[strategy].glyph


@cache
def _style(region: Strategy, strategy: Strategy | None = None, age: int | None = None) -> Style:
    """Return the style of a cell: a line without a strategy, or a token of the trail by its age."""
    if strategy is None:
        return tinted(region) + DIM
    if age is None or 0 < age < TRAIL // 3:
        return tinted(region) + COLOURS[strategy]
    style = COLOURS[strategy] + Style(reverse=True) if age == 0 else faded(strategy, age / TRAIL)
    return tinted(region) + style


def draw_plane(cloud: Cloud, trail: Sequence[Mark], pointed: Mark | None = None) -> Content:
    """Return the plane with its axes.

    Args:
        cloud: the dots of all tokens.
        trail: the last tokens; the newest, at the end, is highlighted.
        pointed: the token under the cursor: a crosshair takes the place of the trail.
    """
    plane, background = cloud.plane, cloud.background
    cells = [list(line) for line in background.cells]

    def put(x: int, y: int, text: str, strategy: Strategy | None, age: int | None = None) -> None:
        region = cells[y][x][1]
        cells[y][x] = (text, region, _style(region, strategy, age))

    for (x, y), (dots, strategy) in cloud.cells.items():
        put(x, y, chr(0x2800 + dots), strategy)
    if pointed is not None:
        x, y = plane.place(pointed[0].entropy, pointed[0].varentropy)
        for line in range(plane.lines):
            put(x, line, "│", None)
        for column in range(plane.columns):
            put(column, y, "─", None)
        trail = [pointed]
    for (x, y), letter in background.names.items():
        cells[y][x] = letter
    for age, (step, strategy) in zip(range(len(trail) - 1, -1, -1), trail, strict=True):
        place = within(background.cells, strategy, *plane.place(step.entropy, step.varentropy))
        put(*place, glyph(step, strategy), strategy, age)
    return _with_axes(cells, cloud)


def _with_axes(cells: list[list[Cell]], cloud: Cloud) -> Content:
    plane = cloud.plane
    top = f"{plane.most_v:3.0f}{'▲' if cloud.beyond_v else '▏'}"
    edges = [top, "  V▏", *["   ▏"] * (plane.lines - 3), "  0▏"]
    lines = [
        runs([(edge, DIM), *((text, style) for text, _, style in row)])
        for edge, row in zip(edges, cells, strict=True)
    ]
    end = OVERFLOW if cloud.beyond_h else f"{plane.most_h:.0f}"
    room = plane.columns - 1 - len(end)
    axis = f"{' ' * MARGIN_LEFT}0{'H bits · V bits²'.center(room)[:room]}{end}"
    return Content("\n").join([*lines, Content.styled(axis, DIM)])


class Plane(Drawn):
    """Shows an answer on the map."""

    DEFAULT_CSS = "Plane { height: 12; }"

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._cloud: Cloud | None = None
        self._of: tuple[Answer, Profile] | None = None  # what the cloud shows

    def draw(self) -> None:
        answer = self.answer
        columns, lines = self.content_size.width - MARGIN_LEFT, self.content_size.height - 1
        if answer is None or columns < SMALLEST[0] or lines < SMALLEST[1]:
            self.show(Content())
            return
        plane, of = Map.of(answer.profile, columns, lines), (answer, answer.profile)
        cloud = self._cloud
        if cloud is None or cloud.plane != plane or of != self._of:
            cloud = Cloud(Background.of(answer.profile, plane))
            self._of, self._cloud = of, cloud
        new = slice(cloud.tokens, None)
        cloud.add(answer.steps[new], answer.strategies[new])
        marks = list(zip(answer.steps[-TRAIL:], answer.strategies[-TRAIL:], strict=True))
        pointed = None
        if answer.cursor is not None:
            pointed = answer.steps[answer.cursor], answer.strategies[answer.cursor]
        self.show(draw_plane(cloud, marks, pointed))
