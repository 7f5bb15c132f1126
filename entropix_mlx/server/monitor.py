"""What other clients are answered, live, for whoever watches the monitor."""

from __future__ import annotations

import asyncio
from typing import Any

from .events import Came

MOST_WAITING = 2000
"""Records that a watcher may be behind; one that does not listen loses the rest."""

Watcher = asyncio.Queue[dict[str, Any] | None]


class Monitor:
    """Hands every step on to those who watch. It belongs on the event loop's thread."""

    def __init__(self, enabled: bool = False) -> None:
        """Begin without watchers.

        Args:
            enabled: whether anybody may watch at all.
        """
        self.enabled = enabled
        self._watchers: set[Watcher] = set()

    def watch(self) -> Watcher:
        """Return a queue in which everything comes from now on; None is its end."""
        watcher: Watcher = asyncio.Queue()
        self._watchers.add(watcher)
        return watcher

    def leave(self, watcher: Watcher) -> None:
        """Send a watcher nothing any more."""
        self._watchers.discard(watcher)
        watcher.put_nowait(None)

    def close(self) -> None:
        """Send nobody anything any more."""
        for watcher in list(self._watchers):
            self.leave(watcher)

    def show(self, request: str, event: Came) -> None:
        """Show a step of a request."""
        if self._watchers:
            step = event.step.to_dict()
            self._send({"request": request, "index": event.index, "step": step})

    def end(self, request: str) -> None:
        """Show that a request has ended."""
        self._send({"request": request, "ended": True})

    def _send(self, record: dict[str, Any]) -> None:
        for watcher in self._watchers:
            if watcher.qsize() < MOST_WAITING:
                watcher.put_nowait(record)
