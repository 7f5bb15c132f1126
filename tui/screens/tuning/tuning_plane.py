"""The map on which thresholds are moved by dragging the borders of regions."""

from __future__ import annotations

from dataclasses import dataclass

from textual import events
from textual.message import Message

from entropix_mlx.profiles.profile import Profile

from ...gauges.plane import MARGIN_LEFT, Map, Plane, regions
from .sliders import THRESHOLDS

EDGES = (0, 1, -1, 2)
"""The edges at which a border can be grabbed, the nearest first: 0 is before a cell, 1 after it."""


def thresholds_at(profile: Profile, plane: Map, column: int, line: int) -> tuple[str, ...]:
    """Return the thresholds whose border is at a cell or next to it; all where they coincide."""
    found = regions(profile, plane)
    for edge in EDGES:
        for upright in (True, False):
            step = (1, 0) if upright else (0, 1)
            here = column + edge * step[0], line + edge * step[1]
            before = here[0] - step[0], here[1] - step[1]
            inside = all(0 <= x < plane.columns and 0 <= y < plane.lines for x, y in (here, before))
            if inside and found[here[1]][here[0]] is not found[before[1]][before[0]]:
                values = sorted(plane.at(*cell)[0 if upright else 1] for cell in (before, here))
                if names := _between(profile, "entropy" if upright else "varentropy", *values):
                    return names
    return ()


def _between(profile: Profile, measurement: str, low: float, high: float) -> tuple[str, ...]:
    """Return a threshold between two values, and those that are equal to it."""
    values = {
        name: getattr(profile.thresholds, name)
        for name, threshold in THRESHOLDS.items()
        if threshold.measurement == measurement
    }
    first = next((value for value in values.values() if low <= value <= high), None)
    return tuple(name for name, value in values.items() if value == first)


class TuningPlane(Plane):
    """Reports the thresholds that the mouse drags, and their value."""

    @dataclass
    class Dragged(Message):
        """The user drags some thresholds to another value."""

        names: tuple[str, ...]
        value: float

    _held: tuple[str, ...] = ()

    def on_mouse_down(self, event: events.MouseDown) -> None:
        plane, place = self.map, self._place(event)
        if plane is not None and place is not None:
            self._held = thresholds_at(self._profile, plane, *place)
            if self._held:
                self.capture_mouse()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        plane = self.map
        if not self._held or plane is None:
            return
        offset = event.get_content_offset_capture(self)
        entropy, varentropy = plane.at(offset.x - MARGIN_LEFT, offset.y)
        upright = THRESHOLDS[self._held[0]].measurement == "entropy"
        value, most = (entropy, plane.most_h) if upright else (varentropy, plane.most_v)
        self.post_message(self.Dragged(self._held, round(min(max(value, 0.0), most), 2)))

    def on_mouse_up(self) -> None:
        self._held = ()
        self.release_mouse()

    def _place(self, event: events.MouseEvent) -> tuple[int, int] | None:
        plane, offset = self.map, event.get_content_offset(self)
        if plane is None or offset is None:
            return None
        column, line = offset.x - MARGIN_LEFT, offset.y
        inside = 0 <= column < plane.columns and 0 <= line < plane.lines
        return (column, line) if inside else None
