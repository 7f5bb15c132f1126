"""Drawing for several widgets: bars, runs of styled cells, the scales of the gauges."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from typing import TypeVar, TypeVarTuple, Unpack

from textual.content import Content
from textual.style import Style

from entropix_mlx.profiles.profile import Profile
from entropix_mlx.traces.scales import fitting_scales

OVERFLOW = "▶"
"""The end of a bar whose value lies beyond the scale."""
EIGHTHS = " ▏▎▍▌▋▊▉█"
HEIGHTS = " ▁▂▃▄▅▆▇█"
DIM = Style(dim=True)
MOST_DRAWN = 64
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


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


scales = by_profile(fitting_scales)


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
