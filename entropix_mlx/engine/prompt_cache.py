"""The prompt cache: texts that were computed, for prompts that begin as they do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .cached_text import CachedText

LEAST_COMMON = 8
"""Tokens that a prompt must share with a text before copying them is worth the while."""
CONTINUED = 0.9
"""Where a prompt shares so much of a text, it takes the text over instead of copying it: it is the
next turn of that conversation."""


class PromptCache:
    """Texts in the order of their last use; those used longest ago leave when there are too many.

    It belongs on the model's thread, as all arrays do.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
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
        if best is None or (common := best.common(prompt)) < LEAST_COMMON:
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
            self._drop(self._texts[0])

    def clear(self) -> None:
        self._texts.clear()
        self.bytes = 0

    def _drop(self, sized: tuple[CachedText, int]) -> None:
        self._texts.remove(sized)
        self.bytes -= sized[1]
