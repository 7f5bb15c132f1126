"""The time of a generation, as its steps tell it."""

from __future__ import annotations

import time


class Clock:
    """Seconds since generation began; it can be stopped while a person thinks."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._stopped: float | None = None

    def __call__(self) -> float:
        """Return the seconds."""
        return time.perf_counter() - self._began

    def stop(self) -> None:
        """Let the time stand still."""
        self._stopped = time.perf_counter()

    def go_on(self) -> None:
        """Count again, from where it was stopped."""
        if self._stopped is not None:
            self._began += time.perf_counter() - self._stopped
            self._stopped = None
