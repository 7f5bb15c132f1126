"""The prompt cache: texts that were computed, for prompts that begin as they do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from .cached_text import CachedText

if TYPE_CHECKING:
    from .disk_cache import DiskCache

LEAST_COMMON = 8
"""Tokens that a prompt must share with a text before copying them is worth the while."""
CONTINUED = 0.9
"""Where a prompt shares so much of a text, it takes the text over instead of copying it: it is the
next turn of that conversation."""


class PromptCache:
    """Texts in the order of their last use; those used longest ago leave when there are too many.

    It belongs on the model's thread, as all arrays do.
    """

    def __init__(self, most_bytes: int, disk: DiskCache | None = None) -> None:
        """Begin without texts; those that leave go to a `disk`, and come back from there."""
        self._most = most_bytes
        self._disk = disk
        self._texts: list[tuple[CachedText, int]] = []
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._texts)

    def take(self, prompt: Sequence[int], others: Iterable[CachedText] = ()) -> CachedText | None:
        """Return a text that begins as a prompt does and may be changed; parts of others are
        copied."""
        own = [text for text, _ in self._texts]
        known = [*reversed(own), *others]
        best = max(known, key=lambda text: text.common(prompt), default=None)
        common = 0 if best is None else best.common(prompt)
        if self._disk is not None and (stored := self._disk.take(prompt, common)):
            return stored
        if best is None or common < LEAST_COMMON:
            return None
        if best in own:
            sized = self._texts.pop(own.index(best))
            if common >= CONTINUED * len(best.ids):
                self.bytes -= sized[1]
                return best
            self._texts.append(sized)  # it was used just now
        return best.copy(common)

    def give(self, text: CachedText) -> None:
        """Keep a text that nobody uses any more, and drop those that it makes useless."""
        size = sum(array.nbytes for array in text.arrays())
        if size > self._most or len(text.ids) < LEAST_COMMON:
            self._store(text)
            return
        length = len(text.ids)
        for sized in list(self._texts):
            if text.common(sized[0].ids) == len(sized[0].ids) <= length:
                self._drop(sized)
        self._texts.append((text, size))
        self.bytes += size
        self.limit(self._most)

    def limit(self, most_bytes: int) -> None:
        """Keep so many bytes from now on."""
        self._most = most_bytes
        while self.bytes > self._most:
            self._store(self._texts[0][0])
            self._drop(self._texts[0])

    def close(self) -> None:
        """Put all texts on the disk, if there is one: the newest first, in case time is short."""
        for text, _ in reversed(self._texts):
            self._store(text)
        if self._disk is not None:
            self._disk.close()
        self.clear()

    def _store(self, text: CachedText) -> None:
        if self._disk is not None:
            self._disk.give(text)

    def clear(self) -> None:
        self._texts.clear()
        self.bytes = 0

    def _drop(self, sized: tuple[CachedText, int]) -> None:
        self._texts.remove(sized)
        self.bytes -= sized[1]
