"""Metal's wired memory, in which a model stays while it runs, as mlx-lm does it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import mlx.core as mx


class WiredMemory:
    """The limit of the process, raised while anything runs on a model and put back afterwards.

    The limit belongs to the process, so its users are counted: the first one raises it, and the
    last one puts back what was there before, in whatever order they come and go.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._before = 0

    @contextlib.contextmanager
    def raised(self) -> Iterator[None]:
        """Keep the limit at what the device recommends; does nothing where there is no Metal."""
        recommended = mx.device_info().get("max_recommended_working_set_size")
        if recommended is None:
            yield
            return
        with self._lock:
            if self._users == 0:
                self._before = mx.set_wired_limit(int(recommended))
            self._users += 1
        try:
            yield
        finally:
            mx.synchronize()
            with self._lock:
                self._users -= 1
                if self._users == 0:
                    mx.set_wired_limit(self._before)


wired_memory = WiredMemory()
"""The one count of this process."""
