"""Stop strings: text that ends an answer and is not part of it."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Holds text back until no stop string can begin in it any more."""

    def __init__(self, stops: Sequence[str] = ()) -> None:
        """Look for any of some strings; none of them may be empty."""
        self._stops = tuple(stops)
        self._held = ""
        self.found = False
        """Whether a stop string has come; no text follows it."""

    @property
    def held(self) -> str:
        """Text that may yet turn out to be part of a stop string."""
        return self._held

    def add(self, text: str) -> str:
        """Return the text that is certain now, after more has come.

        A stop string takes effect where it is complete: of two that overlap, the one that begins
        first counts, and of two that begin together, either.
        """
        if not self._stops or self.found:
            return "" if self.found else text
        held = self._held + text
        starts = [at for stop in self._stops if (at := held.find(stop)) >= 0]
        if starts:
            self.found = True
            self._held = ""
            return held[: min(starts)]
        certain = len(held) - self._begun(held)
        self._held = held[certain:]
        return held[:certain]

    def end(self) -> str:
        """Return what is held back when the answer ends without a stop string."""
        held, self._held = self._held, ""
        return held

    def _begun(self, text: str) -> int:
        """Return the length of the longest beginning of a stop string that ends the text."""
        return max(
            (n for stop in self._stops for n in range(1, len(stop)) if text.endswith(stop[:n])),
            default=0,
        )
