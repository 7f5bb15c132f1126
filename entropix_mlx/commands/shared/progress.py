"""How far a run of many answers has come: a bar on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Progress:
    """A bar on stderr: answers that have ended, tokens per second, time left."""

    def __init__(self, bar: Any) -> None:
        """Show what comes on a bar of tqdm's."""
        self._bar = bar
        self._began = time.perf_counter()
        self._tokens = 0

    def token(self) -> None:
        """Count a token."""
        self._tokens += 1
        self._bar.set_postfix_str(f"{self._speed:.1f} tokens/s", refresh=False)
        self._bar.update(0)

    def answer(self) -> None:
        """Count an answer that has ended."""
        self._bar.update(1)
        self._bar.refresh()

    @property
    def totals(self) -> str:
        """Tokens in all, and how fast they came, prefill included."""
        return f"{self._tokens} tokens at {self._speed:.1f} tokens/s"

    @property
    def _speed(self) -> float:
        return self._tokens / (time.perf_counter() - self._began)


@contextmanager
def shown(total: int, verbose: bool) -> Iterator[Progress]:
    """Show a bar, on a terminal only.

    Args:
        total: answers that are to come.
        verbose: whether anything is to be shown.
    """
    from tqdm import tqdm

    with tqdm(
        total=total,
        file=sys.stderr,
        disable=None if verbose else True,  # None: shown on a terminal only
        leave=False,
        smoothing=0,  # answers end in bursts
        miniters=0,
        mininterval=0.2,
        bar_format="{n}/{total} answers {bar}{postfix}, {remaining} left",
    ) as bar:
        yield Progress(bar)
