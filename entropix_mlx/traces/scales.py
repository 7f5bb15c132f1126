"""The scales of gauges and maps: labels, units and lengths, the same in every front end."""

from __future__ import annotations

import math
from typing import NamedTuple

from ..profiles.profile import Profile
from ..profiles.tree import table

ENTROPY_SCALE, VARENTROPY_SCALE = 8.0, 16.0
"""Bits and bits² at the end of a bar, the top of the history and the edge of the plane; more where
a profile's thresholds ask for it, see `fitting_scales`."""
ROOM = 1.2
"""A scale is at least so many times as long as the largest threshold on it."""


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


def fitting_scales(profile: Profile) -> dict[str, Scale]:
    """Return `SCALES`, as long as a profile's thresholds ask for."""
    fitting = dict(SCALES)
    for row in table(profile):
        for name, bounds in row.bounds.items():
            for bound in filter(math.isfinite, bounds):
                if name in fitting and bound > fitting[name].most / ROOM:
                    fitting[name] = fitting[name]._replace(most=math.ceil(bound * ROOM))
    return fitting
