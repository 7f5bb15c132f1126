"""Drawing for several widgets: bars, runs of styled cells, the scales of the gauges."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar, TypeVarTuple, Unpack

from textual.content import Content
from textual.style import Style

from entropix_mlx.profiles.profile import Profile
from entropix_mlx.profiles.tree import table

ENTROPY_SCALE, VARENTROPY_SCALE = 8.0, 16.0
"""Bits and bits² at the end of a bar, the top of the history and the edge of the plane; more where
a profile's thresholds ask for it, see `scales`."""
ROOM = 1.2
"""A scale is at least so many times as long as the largest threshold on it."""
OVERFLOW = "▶"
"""The end of a bar whose value lies beyond the scale."""
EIGHTHS = " ▏▎▍▌▋▊▉█"
HEIGHTS = " ▁▂▃▄▅▆▇█"
DIM = Style(dim=True)
MOST_DRAWN = 64
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Scale(NamedTuple):
    """A measurement's label, unit and the value at the end of its bar."""

    label: str
    unit: str
    most: float


SCALES = {
    "entropy": Scale("H entropy", "bits", ENTROPY_SCALE),
    "varentropy": Scale("V varentropy", "bits²", VARENTROPY_SCALE),
    "margin": Scale("margin", "of 1", 1.0),
    "attention_entropy": Scale("attn entropy", "bits", 10.0),
    "attention_varentropy": Scale("attn varentropy", "bits²", 4.0),
    "agreement": Scale("agreement", "mean dev.", 0.05),
    "head_divergence": Scale("head divergence", "of 1", 1.0),
    "interaction_strength": Scale("interaction", "score", 10.0),
}


def by_profile(draw: Callable[[Profile, Unpack[Ts]], T]) -> Callable[[Profile, Unpack[Ts]], T]:
    """Cache what a function returns for a profile: gauges ask several times for a drawing."""
    known: dict[tuple[object, ...], tuple[Profile, T]] = {}

    def remembered(profile: Profile, *rest: *Ts) -> T:
        key = (id(profile), *rest)
        if key not in known:
            if len(known) >= MOST_DRAWN:  # every step of a slider makes a profile
                known.clear()
            known[key] = profile, draw(profile, *rest)  # the profile, too: its id stays its own
        return known[key][1]

    remembered.__doc__ = draw.__doc__
    return remembered


@by_profile
def scales(profile: Profile) -> dict[str, Scale]:
    fitting = dict(SCALES)
    for row in table(profile):
        for name, bounds in row.bounds.items():
            for bound in filter(math.isfinite, bounds):
                if name in fitting and bound > fitting[name].most / ROOM:
                    fitting[name] = fitting[name]._replace(most=math.ceil(bound * ROOM))
    return fitting


def bar(value: float, most: float, width: int) -> str:
    """Return a bar of `width` cells that is full at `most`, and marked beyond that."""
    if width and most < value < math.inf:
        return "█" * (width - 1) + OVERFLOW
    share = min(max(value / most, 0.0), 1.0) if math.isfinite(value) else 0.0
    eighths = round(share * width * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (EIGHTHS[rest] if rest else "")).ljust(width)


def runs(cells: Iterable[tuple[str, Style]]) -> Content:
    """Join cells of one style each: few long pieces are drawn faster than many short ones.

    Styles are compared by identity, since comparing their fields costs more than all else here.
    """
    pieces = (list(run) for _, run in itertools.groupby(cells, key=lambda cell: id(cell[1])))
    return Content.assemble(*(("".join(text for text, _ in run), run[0][1]) for run in pieces))
