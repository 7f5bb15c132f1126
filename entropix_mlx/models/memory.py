"""The machine's memory: how many texts fit beside a model, and Metal's limit for wired memory."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

import mlx.core as mx
from mlx.utils import tree_flatten

from .base import LanguageModel
from .device import recommended_memory

CLEAR_EVERY = 256
"""Passes between two releases of MLX's unused buffers."""
CACHE_SHARE = 0.5
"""The share of the memory that the weights leave which caches may take."""


def cache_tokens(model: LanguageModel) -> int:
    """Return how many tokens caches may hold beside what is in memory now, on all machines."""
    return model.least(own_cache_tokens(model))


def own_cache_tokens(model: LanguageModel) -> int:
    free = (usable_memory() - mx.get_active_memory()) * CACHE_SHARE
    return int(free // max(1, model.bytes_per_token))


def weight_bytes(model: LanguageModel) -> int:
    """Return what the weights of a model take in memory."""
    arrays: dict[str, mx.array] = dict(tree_flatten(model.parameters()))
    return sum(array.nbytes for array in arrays.values())


def usable_memory() -> int:
    limit = recommended_memory()
    return machine_memory() if limit is None else limit


def machine_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class WiredMemory:
    """The process's limit for wired memory, in which a model stays while it runs.

    mlx-lm raises it, too. It belongs to the process, so its users are counted: the first one raises
    it, and the last one restores what was there before, in whatever order they come and go.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._before = 0

    @contextlib.contextmanager
    def raised(self) -> Iterator[None]:
        """Keep the limit at what the device recommends; does nothing where there is no Metal."""
        recommended = recommended_memory()
        if recommended is None:
            yield
            return
        with self._lock:
            if self._users == 0:
                self._before = mx.set_wired_limit(recommended)
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
