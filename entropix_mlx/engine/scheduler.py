"""The only loop: it asks every answer what it wants, and serves all wants in one pass.

The loop is optimistic. While it reads a position, the next one already runs with the token that was
drawn. Where an answer then wants something else, that token leaves its cache again and the answer
sits out one pass; the others lose nothing. A position's randomness depends on nothing but the seed
and the position, so a guess that was wrong never changes a later draw.

    pass      1        2        3        4        5         one column is one forward pass
    answer A  the   →  sky   →  is    →  blue  →  .         every guess was right
    answer B  well  →  [so]     Wait  →  ,     →  what      text is inserted: "so" is taken back
    answer C  it    →  [is]     five rollouts ……………………      a branch point: five rows for C
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from ..models.base import LanguageModel
from ..step import Step
from .cached_text import Prompt
from .forward import Engine, Pass
from .slot import Slot

PREFILL_CHUNK = 256
"""Tokens of a prompt that are computed at once while nothing else waits."""
SMALLEST_CHUNK = 16
"""Tokens of a prompt that are computed at once at least."""
LONGEST_WAIT = 3.0
"""A chunk of prompts may take as long as this many passes of the answers that wait for it."""
FORGETS = 0.5
"""The weight of the newest duration in a running mean."""


class Scheduler:
    """Runs answers on one model. It belongs on the thread that loaded the model."""

    def __init__(
        self, model: LanguageModel, *, pipelined: bool = True, steady: bool = False
    ) -> None:
        """Begin without answers.

        Args:
            model: from `load`.
            pipelined: whether to queue a pass before the last one was read. The passes are the
                same, and so are the steps.
            steady: whether all chunks of prompts are of one size, however long others wait. Then
                what shares a pass does not depend on the clock, and the same answers are repeated
                exactly.
        """
        self._engine = Engine(model)
        self._pipelined = pipelined
        self._steady = steady
        self._waiting: list[Slot] = []
        self._running: list[Slot] = []
        self._pending: Pass | None = None
        self._pass_seconds = _RunningMean()
        self._token_seconds = _RunningMean()

    @property
    def rows(self) -> list[Slot]:
        """The answers that have not ended."""
        return [*self._waiting, *self._running]

    def add(self, row: Slot) -> None:
        """Take an answer on; its prompt is computed between the passes of the others."""
        self._waiting.append(row)

    def advance(self) -> list[tuple[Slot, Step]]:
        """Run one pass, and at most one chunk of prompts; return the steps that were committed.

        An answer that fails has its `error` set and leaves; the others are not touched by it.
        """
        waited = self._prefill()
        if not self._pipelined:
            waited += self._finish_pass()
        began = time.perf_counter()
        pending = self._queue()
        steps = list(self._read())
        self._pending = pending
        if steps:
            self._pass_seconds.add(waited + time.perf_counter() - began)
        for row in [row for row in self._running if row.ended]:
            self._running.remove(row)
        return steps

    def run(self) -> Iterator[tuple[Slot, Step]]:
        """Yield steps until every answer has ended, or waits for a person."""
        while any(row.asked is None for row in self.rows):
            yield from self.advance()

    def close(self) -> None:
        """End all answers; the caches hold what was committed."""
        for row in self.rows:
            row.end()
        self._waiting.clear()
        self._running.clear()
        self._pending = None

    def _queue(self) -> Pass | None:
        """Start the next pass: what is known to come, and guesses where it is not known yet."""
        # Rows of one kind follow one another; the kinds, in the order in which they came.
        kinds = list(dict.fromkeys(row.sampling.kind for row in self._running))
        rows = sorted(self._running, key=lambda row: kinds.index(row.sampling.kind))
        queued = [(row, row.queue(self._pending, alone=len(rows) == 1)) for row in rows]
        groups = [group for _, found in queued for group in found]
        if not groups:
            return None
        pending = self._engine.queue(groups)
        first = 0
        for row, found in queued:
            size = sum(group.tokens.size for group in found)
            row.queued(first)
            first += size
        return pending

    def _read(self) -> Iterator[tuple[Slot, Step]]:
        """Read the pass before, and let each answer go on from it."""
        for row in list(self._running):
            row.receive(self._pending)
            yield from ((row, step) for step in row.take_steps())

    def _prefill(self) -> float:
        """Compute a chunk of the waiting prompts, and begin the answers that have theirs.

        Several short prompts share a chunk, so that their answers begin, and run, together.

        Returns:
            The seconds that the pass before it still took.
        """
        for row in self.rows:
            if (row.asked is not None or row in self._waiting) and row.cancelled:
                row.end()
        self._waiting = [row for row in self._waiting if not row.ended]
        waited = 0.0
        left = self._chunk()
        for prompt in dict.fromkeys(row.prompt for row in self._waiting if row.prompt.unread):
            if left > 0:
                waited += self._finish_pass()  # or its time would be taken for that of the chunk
                left -= self._read_chunk(prompt, left)
        for row in [row for row in self._waiting if not (row.prompt.unread or row.ended)]:
            self._waiting.remove(row)
            row.start()
            self._running.append(row)
        return waited

    def _finish_pass(self) -> float:
        """Wait for the last pass; return the seconds that it still took."""
        began = time.perf_counter()
        if self._pending is not None:
            self._pending.read()
        return time.perf_counter() - began

    def _read_chunk(self, prompt: Prompt, most: int) -> int:
        """Compute at most so many tokens of a prompt; return the number computed."""
        readers = [row for row in self._waiting if row.prompt is prompt]
        for row in readers:
            row.tell_prefill(prompt.done, prompt.total)
        if all(row.cancelled for row in readers):
            return 0
        chunk = prompt.unread[:most]
        began = time.perf_counter()
        self._engine.prefill(prompt.text, chunk)
        self._token_seconds.add((time.perf_counter() - began) / len(chunk))
        del prompt.unread[: len(chunk)]
        return len(chunk)

    def _chunk(self) -> int:
        """Return how many tokens of prompts to compute now: fewer where answers wait for it."""
        if self._steady or not self._running:
            return PREFILL_CHUNK
        if not self._token_seconds.value or not self._pass_seconds.value:
            return SMALLEST_CHUNK
        tokens = LONGEST_WAIT * self._pass_seconds.value / self._token_seconds.value
        return int(min(max(tokens, SMALLEST_CHUNK), PREFILL_CHUNK))


class _RunningMean:
    """A mean of durations in which the newest count most."""

    def __init__(self) -> None:
        self.value = 0.0

    def add(self, seconds: float) -> None:
        self.value += (FORGETS if self.value else 1.0) * (seconds - self.value)
