"""The gauges beside the text: bars with their thresholds, counts, a running fork.

Every scale is fixed as long as the profile is, so that a picture means the same at any moment and
in any answer.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from textual.content import Content
from textual.style import Style

from entropix_mlx.palette import SHORT_NAMES, SWATCHES
from entropix_mlx.profiles.profile import Profile
from entropix_mlx.profiles.tree import table
from entropix_mlx.step import Strategy
from entropix_mlx.traces.explain import words
from entropix_mlx.traces.scales import fitting_scales

from ..drawing import DIM, Drawn, bar, runs
from ..help_text import reachable
from ..inspector.inspector import draw_branches
from ..styles import COLOURS, STYLES

NARROWEST = 32
"""Cells that the gauges take at least."""
THRESHOLDS = ("entropy", "varentropy", "margin")
"""The measurements that have thresholds."""
NAME, LONGEST = 11, 15
"""Cells of a strategy's name, and of the longest one; it is not explained, and may be longer."""
MEANING = 1 + max(map(len, SHORT_NAMES.values()))
NUMBERS, SHORTEST = 9, 3
"""Cells of a count with its share, and of a bar at least."""


class Bars(Drawn):
    """H, V and the margin; of the newest token, or at the end of the whole answer."""

    def draw(self) -> None:
        answer, width = self.answer, self.content_size.width - 1
        if answer is None or width < NARROWEST:
            return
        step = answer.newest
        style = COLOURS[step.strategy] if step else Style() if answer.steps else DIM
        ended = answer.steps and step is None
        title = f"averages over {len(answer.steps)} tokens" if ended else ""
        bars = draw_bars(answer.values, style, answer.profile, width, title)
        if answer.fork is not None:
            bars = in_place_of(bars, draw_branches(answer.fork, width, running=True))
        self.show(bars)


class Counts(Drawn):
    """The tokens of each strategy."""

    def draw(self) -> None:
        answer, width = self.answer, self.content_size.width - 1
        if answer is not None and width >= NARROWEST:
            counts = answer.summary.strategies
            self.show(draw_counts(counts, width, answer.decides, answer.profile))


def in_place_of(drawing: Content, other: Content) -> Content:
    """Return the other drawing with as many lines as this one, so that nothing moves."""
    height = len(drawing.split("\n", allow_blank=True))
    lines = [*other.split("\n", allow_blank=True), *[Content()] * height]
    return Content("\n").join(lines[:height])


def threshold_line(profile: Profile, name: str, most: float, width: int) -> Content:
    """Return the line below a measurement's bar: a strategy's glyph at each threshold."""
    line = [("·", DIM)] * width
    for row in table(profile):
        if row.strategy not in reachable(profile):
            continue
        for bound in row.bounds.get(name, ()):
            if 0 < bound < most:
                cell = min(width - 1, int(bound / most * width))
                line[cell] = (SWATCHES[row.strategy].glyph, COLOURS[row.strategy])
    return runs(line)


def draw_bars(
    values: Mapping[str, float], style: Style, profile: Profile, width: int, title: str = ""
) -> Content:
    """Return H, V and the margin as bars with their thresholds.

    Values with a title are averages; those of a single token are also described in words.
    """
    lines = [Content.styled(title, DIM)] if title else []
    descriptions = {} if title else words(profile, values)  # an average lies in no region
    for name, scale in fitting_scales(profile).items():
        if name not in THRESHOLDS:
            continue
        value = values.get(name, math.nan)
        number = f"{value:.2f} {scale.unit}" if values else f"– {scale.unit}"
        room = width - len(scale.label) - len(number) - 2
        word = descriptions.get(name, "")[:room].ljust(room)
        lines += [
            Content.assemble((scale.label, DIM), f"  {word}{number}"),
            Content.styled(bar(value, scale.most, width), style),
            threshold_line(profile, name, scale.most, width),
        ]
    return Content("\n").join(lines)


def draw_counts(
    counts: Counter[Strategy],
    width: int,
    has_thresholds: bool = True,
    profile: Profile | None = None,
) -> Content:
    """Return the tokens of each strategy that a profile can choose; this is the legend, too.

    Where thresholds decided, a strategy also names the state of the model, if there is room.
    """
    total = max(1, counts.total())
    explained = has_thresholds and width >= NAME + MEANING + NUMBERS + SHORTEST
    lines = []
    for strategy in Strategy:
        usual = strategy is not Strategy.SAMPLE and strategy in reachable(profile)
        if not usual and not counts[strategy]:
            continue
        share = counts[strategy] / total
        name = f"{SWATCHES[strategy].glyph} {strategy}"
        meaning = SHORT_NAMES.get(strategy, "") if explained else ""
        room = NAME + MEANING if explained else LONGEST
        gap = f"{' ' * (NAME - len(name))}{meaning}".ljust(room - len(name))
        drawn = bar(share, 1.0, max(width - room - NUMBERS, 0))
        number = f"{counts[strategy]} {share:4.0%}".rjust(NUMBERS)
        styled = Content.styled(name, STYLES[strategy])
        drawn_bar = Content.styled(drawn, COLOURS[strategy])
        lines.append(styled + Content(gap) + drawn_bar + Content(number))
    return Content("\n").join(lines)
