"""The charts of a report, as inline SVG: a metric over the tokens, and the H–V plane.

The page's style sheet has a class for each strategy, which gives an element its colour.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..profiles.profile import Profile
from ..profiles.tree import table
from ..step import NOT_OF_THE_MODEL, Origin, Step, Strategy

_CHART_HEIGHT = 100
"""In the units of the drawing. A chart is one unit wide for each token; the page stretches it."""


class Frame(NamedTuple):
    """The place of the plane, and the largest H and V that it shows, on square-root scales.

    On linear ones the corner where the model is sure, with H and V below 1, would be tiny.
    """

    entropy: float  # bits at the right edge
    varentropy: float  # bits² at the upper edge
    left: float = 40
    top: float = 24
    width: float = 450
    height: float = 300

    def x(self, entropy: float) -> float:
        return self.left + self.width * _root_share(entropy, self.entropy)

    def y(self, varentropy: float) -> float:
        return self.top + self.height * (1 - _root_share(varentropy, self.varentropy))


def frame_of(steps: Sequence[Step]) -> Frame:
    return Frame(
        entropy=max([1.0, *(step.entropy for step in steps)]),
        varentropy=max([1.0, *(step.varentropy for step in steps)]),
    )


def interventions(steps: Sequence[Step]) -> dict[int, Strategy]:
    """Return the strategies as which interventions are marked; a user's choice is like a fork."""
    marks = {}
    for step in steps:
        if step.rolled_back and step.origin in NOT_OF_THE_MODEL:
            marks[step.index] = Strategy.THINK
        elif step.fork is not None or (step.rolled_back and step.origin is Origin.CHOSEN):
            marks[step.index] = Strategy.BRANCH
    return marks


def curve(values: Sequence[float], top: float, marks: Mapping[int, Strategy]) -> str:
    """Return the curve of a metric over the tokens, up to the value `top` at the upper edge.

    Interventions are marked at the index of their first token.
    """
    points = " ".join(
        f"{index}.5,{_CHART_HEIGHT * (1 - value / top):.1f}" for index, value in enumerate(values)
    )
    lines = "".join(
        f'<line class="{strategy}" x1="{i}.5" x2="{i}.5" y2="{_CHART_HEIGHT}"/>'
        for i, strategy in marks.items()
    )
    return (
        f'<svg viewBox="0 0 {max(1, len(values))} {_CHART_HEIGHT}" preserveAspectRatio="none"'
        f' aria-hidden="true">{lines}<polyline points="{points}"/>'
        f'<line class="cursor" y2="{_CHART_HEIGHT}"/></svg>'
    )


def plane(steps: Sequence[Step], frame: Frame, profile: Profile | None) -> str:
    """Return the entropy–varentropy plane with a dot a step, and the thresholds of a profile."""
    width, height = frame.left + frame.width + 10, frame.top + frame.height + 45
    return (
        f'<svg class="plane" viewBox="0 0 {width:g} {height:g}" role="img"'
        ' aria-label="entropy and varentropy of each token">'
        f"{_regions(frame, profile) if profile else ''}{_axes(frame)}{_dots(steps, frame)}"
        '<circle class="cursor" r="6"/></svg>'
    )


def _root_share(value: float, whole: float) -> float:
    return math.sqrt(min(max(value / whole, 0.0), 1.0))


def _regions(frame: Frame, profile: Profile) -> str:
    """Draw the rows of the decision tree, the last first: where two overlap, the first decides."""
    regions = []
    for row in reversed(table(profile)):
        if not row.bounds:  # it holds wherever no other does
            continue
        left, right = (frame.x(bound) for bound in row.bounds["entropy"])
        bottom, top = (frame.y(bound) for bound in row.bounds["varentropy"])
        if left < right and top < bottom:
            regions.append(
                f'<rect class="region {row.strategy}" x="{left:.1f}" y="{top:.1f}"'
                f' width="{right - left:.1f}" height="{bottom - top:.1f}"/>'
                f'<text class="name" x="{left + 4:.1f}" y="{top + 12:.1f}">{row.strategy}</text>'
            )
    return "".join(regions)


def _axes(frame: Frame) -> str:
    bottom, right = frame.top + frame.height, frame.left + frame.width
    across = "".join(
        f'<text x="{frame.x(tick):.1f}" y="{bottom + 16:g}" text-anchor="middle">{tick:g}</text>'
        for tick in _ticks(frame.entropy)
    )
    up = "".join(
        f'<text x="{frame.left - 5:g}" y="{frame.y(tick) + 4:.1f}" text-anchor="end">'
        f"{tick:g}</text>"
        for tick in _ticks(frame.varentropy)
    )
    return (
        f'<rect class="frame" x="{frame.left:g}" y="{frame.top:g}" width="{frame.width:g}"'
        f' height="{frame.height:g}"/>{across}{up}'
        f'<text x="{right:g}" y="{bottom + 34:g}" text-anchor="end">entropy H, bits</text>'
        f'<text x="{frame.left:g}" y="{frame.top - 8:g}">varentropy V, bits²</text>'
    )


def _ticks(top: float) -> list[float]:
    return [tick for tick in (0, 0.1, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500) if tick <= top]


_DOT = "m-3 0a3 3 0 106 0a3 3 0 10-6 0z"
_RING = _DOT + "m1.5 0a1.5 1.5 0 013 0a1.5 1.5 0 01-3 0z"
_DIAMOND = "m-4 0l4-4 4 4-4 4z"
_SHAPES = {
    Strategy.ARGMAX: _DOT,
    Strategy.THINK: _DIAMOND,
    Strategy.THINK_SAMPLE: _DIAMOND + "m2.5 0l1.5 1.5 1.5-1.5-1.5-1.5z",
    Strategy.BRANCH: "m-4 3h8l-4-7z",
    Strategy.RESAMPLE: "m-3-3h6v6h-6z",
    Strategy.ADAPTIVE: _RING,
    Strategy.SAMPLE: "m-1.5 0a1.5 1.5 0 103 0a1.5 1.5 0 10-3 0z",
}
"""The glyphs of `palette.SWATCHES` as SVG paths, around a dot's centre. A hole runs the other way
round, so that it is not filled."""


def _dots(steps: Sequence[Step], frame: Frame) -> str:
    """Draw a dot for each step; thousands of elements would be slow, so a strategy is one path."""
    paths: dict[Strategy, list[str]] = defaultdict(list)
    for step in steps:
        place = f"M{frame.x(step.entropy):.1f} {frame.y(step.varentropy):.1f}"
        paths[step.strategy].append(place + _SHAPES[step.strategy])
    return "".join(
        f'<path class="dots {strategy}" d="{"".join(parts)}"/>' for strategy, parts in paths.items()
    )
