"""Stop strings: text that ends an answer and is not part of it."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Holds text back until no stop string can begin in it any more."""

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.found = False
        """Whether a stop string has come; no text follows it."""

    def resume(self, text: str, shown: str) -> None:
        held = self._held + text
        self._held = held.removeprefix(shown) if held.startswith(shown) else ""

    def add(self, text: str) -> str:
        """Return the text that is certain now, after more has come.

        The stop string that is complete first ends the text; of two that end together, the longer
        one.
        """
        if self.found:
            return ""
        held = self._held + text
        found = [(at + len(stop), at) for stop in self._stops if (at := held.find(stop)) >= 0]
        if found:
            self.found = True
            self._held = ""
            return held[: min(found)[1]]
        certain = len(held) - self._begun(held)
        self._held = held[certain:]
        return held[:certain]

    def skip(self, text: str) -> str:
        """Return text in which no stop string is looked for, after what was held back."""
        held, self._held = self._held, ""
        return held + text

    def end(self) -> str:
        return self.skip("")

    def _begun(self, text: str) -> int:
        """Return the length of the longest beginning of a stop string that ends the text."""
        return max(
            (n for stop in self._stops for n in range(1, len(stop)) if text.endswith(stop[:n])),
            default=0,
        )
