"""The gauges beside the text: bars with their thresholds, a history, the plane, and counts.

Every scale is fixed as long as the profile is, so that a picture means the same at any moment and
in any answer.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.style import Style
from textual.widgets import Static

from entropix_mlx.palette import LOOKS
from entropix_mlx.profiles.profile import Profile
from entropix_mlx.profiles.tree import table
from entropix_mlx.step import Step, Strategy

from ..drawing import DIM, OVERFLOW, bar, runs, scales
from ..styles import COLOURS, STYLES

HEIGHTS = " ▁▂▃▄▅▆▇█"
PLANE_HEIGHT = 9


def threshold_line(profile: Profile, name: str, width: int) -> Content:
    """Return where a measurement's thresholds lie under its bar: a strategy's glyph at each."""
    line = [("·", DIM)] * width
    most = scales(profile)[name].most
    for row in table(profile):
        for bound in row.bounds.get(name, ()):
            if 0 < bound < most:
                cell = min(width - 1, int(bound / most * width))
                line[cell] = (LOOKS[row.strategy].glyph, COLOURS[row.strategy])
    return runs(line)


def draw_bars(step: Step | None, profile: Profile, width: int) -> Content:
    """Return all measurements of a step as bars, H and V with their thresholds."""
    lines: list[Content] = []
    style = COLOURS[step.strategy] if step else DIM
    for name, scale in scales(profile).items():
        value = step.metrics[name] if step else math.nan
        shown = f"{value:.3f}" if scale.most < 1 else f"{value:.2f}"
        number = f"{shown} {scale.unit}" if step else f"– {scale.unit}"
        if name in ("entropy", "varentropy"):
            lines.append(Content(scale.label + number.rjust(width - len(scale.label))))
            lines.append(Content.styled(bar(value, scale.most, width), style))
            lines.append(threshold_line(profile, name, width))
        else:
            cells = width - 16 - 15
            drawn = bar(value, scale.most, max(cells, 0))
            lines.append(Content.assemble(scale.label.ljust(16), (drawn, style), number.rjust(15)))
    return Content("\n").join(lines)


def draw_history(steps: Sequence[Step], profile: Profile, width: int) -> Content:
    """Return H and V of the last steps, two cells high each, a column a token."""
    shown = steps[-(width - 2) :]
    lines = []
    for name, letter in (("entropy", "H"), ("varentropy", "V")):
        most = scales(profile)[name].most
        for upper in (True, False):
            parts: list[tuple[str, Style]] = [(f"{letter} " if upper else "  ", DIM)]
            for step in shown:
                level = min(16, max(1, round(step.metrics[name] / most * 16)))
                height = max(0, level - 8) if upper else min(8, level)
                parts.append((HEIGHTS[height], COLOURS[step.strategy]))
            lines.append(runs(parts))
    return Content("\n").join(lines)


def draw_plane(steps: Sequence[Step], profile: Profile, width: int, height: int) -> Content:
    """Return the entropy–varentropy plane: H to the right, V up, the newest token highlighted."""
    columns = width - 3
    cells = [[(" ", DIM)] * columns for _ in range(height)]
    most_h, most_v = (scales(profile)[name].most for name in ("entropy", "varentropy"))

    def column(entropy: float) -> int:
        return min(columns - 1, int(entropy / most_h * columns))

    def line(varentropy: float) -> int:
        return height - 1 - min(height - 1, int(varentropy / most_v * height))

    upright = {column(bound) for bound in _splits(profile, "entropy")}
    level = {line(bound) for bound in _splits(profile, "varentropy")}
    for y, x in itertools.product(range(height), range(columns)):
        if x in upright:
            cells[y][x] = ("┼" if y in level else "│", DIM)
        elif y in level:
            cells[y][x] = ("─", DIM)
    for step in steps:
        here = (LOOKS[step.strategy].glyph, COLOURS[step.strategy])
        cells[line(step.varentropy)][column(step.entropy)] = here
    if steps:
        newest = steps[-1]
        here = (LOOKS[newest.strategy].glyph, COLOURS[newest.strategy] + Style(reverse=True))
        cells[line(newest.varentropy)][column(newest.entropy)] = here
    # A token beyond a scale stands at the edge, and the end of that axis is marked.
    above = any(step.varentropy > most_v for step in steps)
    beyond = any(step.entropy > most_h for step in steps)
    edges = [f"{most_v:2.0f}{'▲' if above else '▏'}", " V▏", *["  ▏"] * (height - 3), " 0▏"]
    lines = [runs([(edge, DIM), *row]) for edge, row in zip(edges, cells, strict=True)]
    axis = f"   0{'H bits'.center(columns - 2)}{OVERFLOW if beyond else f'{most_h:.0f}'}"
    return Content("\n").join([*lines, Content.styled(axis, DIM)])


def _splits(profile: Profile, name: str) -> set[float]:
    """Return where the decision tree splits a measurement."""
    most = scales(profile)[name].most
    bounds = itertools.chain(*(row.bounds.get(name, ()) for row in table(profile)))
    return {bound for bound in bounds if 0 < bound < most}


def draw_counts(counts: Counter[Strategy], width: int) -> Content:
    """Return how often each strategy was chosen; this is the legend, too."""
    total = max(1, counts.total())
    lines = []
    for strategy in Strategy:
        if strategy is Strategy.SAMPLE and not counts[strategy]:
            continue
        share = counts[strategy] / total
        name = f"{LOOKS[strategy].glyph} {strategy}"
        drawn = bar(share, 1.0, max(width - 15 - 10, 0))
        number = f"{counts[strategy]} {share:4.0%}".rjust(10)
        styled = Content.styled(name, STYLES[strategy])
        lines.append(styled + Content(" " * (15 - len(name)) + drawn + number))
    return Content("\n").join(lines)


class Gauges(VerticalScroll):
    """All gauges, one below the other."""

    DEFAULT_CSS = """
    Gauges { padding: 0 1; }
    Gauges Static { height: auto; margin-bottom: 1; }
    """

    def __init__(self, profile: Profile, *, id: str) -> None:
        """Begin with nothing measured."""
        super().__init__(id=id, can_focus=False)
        self._profile = profile
        self._steps: list[Step] = []
        self._counts: Counter[Strategy] = Counter()

    def compose(self) -> ComposeResult:
        """Make the parts."""
        yield Static(id="bars")
        yield Static(id="history")
        yield Static(id="plane")
        yield Static(id="counts")

    def on_mount(self) -> None:
        """Draw what there is."""
        self.draw()

    def on_resize(self) -> None:
        """Draw for the new width."""
        self.draw()

    def show_answer(self, steps: Sequence[Step], profile: Profile) -> None:
        """Show the steps of an answer and a profile's thresholds."""
        self._steps = list(steps)
        self._counts = Counter(step.strategy for step in self._steps)
        self._profile = profile
        self.draw()

    def add_steps(self, steps: Sequence[Step]) -> None:
        """Take more steps of the answer, which the next `draw` shows."""
        self._steps += steps
        self._counts.update(step.strategy for step in steps)

    def draw(self) -> None:
        """Draw everything."""
        width = self.content_size.width - 1
        if width < 32:
            return
        newest = self._steps[-1] if self._steps else None
        drawings = {
            "bars": draw_bars(newest, self._profile, width),
            "history": draw_history(self._steps, self._profile, width),
            "plane": draw_plane(self._steps, self._profile, width, PLANE_HEIGHT),
            "counts": draw_counts(self._counts, width),
        }
        for name, drawing in drawings.items():
            part = self.query_one(f"#{name}", Static)
            part.update(drawing, layout=part.size.height != drawing.plain.count("\n") + 1)
