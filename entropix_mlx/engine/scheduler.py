"""The only loop: it asks every slot for its rows, and serves all of them in one pass.

The loop is optimistic. While it reads a position, the next one already runs with the token that was
drawn. Where an answer then asks for something else, that token leaves its cache again and its slot
sits out one pass; the others lose nothing. A position's randomness depends on nothing but the seed
and the position, so a token that is taken back never changes a later draw.

    pass      1        2        3        4        5         one column is one forward pass
    answer A  the   →  sky   →  is    →  blue  →  .         every draw was committed
    answer B  well  →  [so]     Wait  →  ,     →  what      a thought: "so" is taken back
    answer C  it    →  [is]     five branches ……………………      a fork: five rows for C

One turn, `advance`, in order:

1. Prompts: a chunk of those that wait. It takes at most as long as a few passes of the answers that
   run meanwhile. Slots whose prompt is complete begin.
2. Queue: the rows of all slots start as the next pass.
3. Read: the pass before is read; each slot's answer goes on from it and commits steps.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from ..models.base import LanguageModel
from ..step import Step
from .cached_text import Prompt
from .forward import PREFILL_CHUNK, Engine, Pass, kind_of
from .slot import Slot

SMALLEST_CHUNK = 16
"""Tokens of a prompt that are computed at once at least."""
LONGEST_WAIT = 3.0
"""A chunk of prompts may take as long as this many passes of the answers that wait for it."""
DECAY = 0.5
"""The weight of the newest duration in a running mean."""


class Scheduler:
    """Runs answers on one model. It belongs on the thread that loaded the model."""

    def __init__(
        self, model: LanguageModel, *, pipelined: bool = True, steady: bool = False
    ) -> None:
        """Begin without answers.

        Args:
            pipelined: whether to queue a pass before the last one was read; the steps are the same.
            steady: whether all chunks of prompts are of one size, however long others wait. Then no
                pass depends on the clock, and the same answers are repeated exactly.
        """
        self._engine = Engine(model)
        self._pipelined = pipelined
        self._steady = steady
        self._waiting: list[Slot] = []
        self._running: list[Slot] = []
        self._shortest_first = False
        self._pass: Pass | None = None
        self._pass_seconds = _RunningMean()
        self._token_seconds = _RunningMean()

    @property
    def slots(self) -> list[Slot]:
        return [*self._waiting, *self._running]

    def add(self, slot: Slot) -> None:
        """Take an answer on; its prompt is computed between the passes of the others."""
        self._waiting.append(slot)

    def advance(self) -> list[tuple[Slot, Step]]:
        """Run one pass, and at most one chunk of prompts; return the steps that were committed.

        An answer that fails has its `error` set and leaves; the others are not touched by it.
        """
        waited = self._prefill()
        if not self._pipelined:
            waited += self._finish_pass()
        began = time.perf_counter()
        queued = self._queue()
        steps = list(self._read())
        self._pass = queued
        if steps:
            self._pass_seconds.add(waited + time.perf_counter() - began)
        for slot in [slot for slot in self._running if slot.ended]:
            self._running.remove(slot)
        return steps

    def close(self) -> None:
        """End all answers; the caches hold what was committed."""
        for slot in self.slots:
            slot.end()
        self._waiting.clear()
        self._running.clear()
        self._pass = None

    # ── 1. Prompts ──────────────────────────────────────────────────────────────────────────────

    def _prefill(self) -> float:
        """Compute a chunk of the waiting prompts, and begin the answers that have theirs.

        Several short prompts share a chunk, so that their answers begin, and run, together.

        Returns:
            The seconds that the pass before it still took.
        """
        # 1. Who was cancelled leaves, unless a pass of its own will see to it.
        for slot in self.slots:
            if (slot.undecided is not None or slot in self._waiting) and slot.cancelled:
                slot.end()
        self._waiting = [slot for slot in self._waiting if not slot.ended]
        # 2. Prompts are computed as far as the chunk goes: in one turn those first of which least
        # is left, in the next those that came first, so that none waits for ever.
        waited, left = 0.0, self._chunk()
        prompts = list(dict.fromkeys(slot.prompt for slot in self._waiting))
        self._shortest_first = not self._shortest_first
        if self._shortest_first:
            prompts.sort(key=lambda p: p.unread if p.opened else len(p.tokens))
        for prompt in prompts:
            if left > 0 and prompt.unread:
                waited += self._finish_pass()  # or its time would be taken for that of the chunk
                left -= self._read_chunk(prompt, left)
        # 3. Answers begin whose prompt is in the cache.
        for slot in [slot for slot in self._waiting if slot.prompt.complete and not slot.ended]:
            self._waiting.remove(slot)
            slot.start()
            self._running.append(slot)
        return waited

    def _finish_pass(self) -> float:
        began = time.perf_counter()
        if self._pass is not None:
            self._pass.read()
        return time.perf_counter() - began

    def _read_chunk(self, prompt: Prompt, most: int) -> int:
        readers = [slot for slot in self._waiting if slot.prompt is prompt]
        for slot in readers:
            slot.report_prefill(prompt.done, prompt.total)
        if all(slot.cancelled for slot in readers):
            return 0
        tokens, following = prompt.chunk(most)
        began = time.perf_counter()
        if prompt.scored is None:
            self._engine.prefill(prompt.text, tokens)
        else:
            found = self._engine.score(prompt.text, tokens, following, prompt.scored)
            prompt.likelihoods += found
        self._token_seconds.add((time.perf_counter() - began) / len(tokens))
        return len(tokens)

    def _chunk(self) -> int:
        """Return how many tokens of prompts to compute now: fewer where answers wait for it."""
        if self._steady or not self._running:
            return PREFILL_CHUNK
        if not self._token_seconds.value or not self._pass_seconds.value:
            return SMALLEST_CHUNK
        tokens = LONGEST_WAIT * self._pass_seconds.value / self._token_seconds.value
        return int(min(max(tokens, SMALLEST_CHUNK), PREFILL_CHUNK))

    # ── 2. Queue ────────────────────────────────────────────────────────────────────────────────

    def _queue(self) -> Pass | None:
        """Start the next pass: what was asked for, and what is expected where that is not known."""
        # 1. Slots of one kind follow one another; the kinds, in the order in which they came.
        kinds = list(dict.fromkeys(kind_of(slot.resolved) for slot in self._running))
        slots = sorted(self._running, key=lambda slot: kinds.index(kind_of(slot.resolved)))
        # 2. Each brings its rows, which need not be known to the host yet.
        queued = [(slot, slot.queue(self._pass, alone=len(slots) == 1)) for slot in slots]
        groups = [group for _, found in queued for group in found]
        if not groups:
            return None
        following = self._engine.queue(groups)
        # 3. Each is shown where its rows are.
        first = 0
        for slot, found in queued:
            size = sum(group.tokens.size for group in found)
            slot.queued(first)
            first += size
        return following

    # ── 3. Read ─────────────────────────────────────────────────────────────────────────────────

    def _read(self) -> Iterator[tuple[Slot, Step]]:
        for slot in list(self._running):
            slot.receive(self._pass)
            yield from ((slot, step) for step in slot.take_steps())


class _RunningMean:
    """A mean of durations in which the newest count most."""

    def __init__(self) -> None:
        self.value = 0.0

    def add(self, seconds: float) -> None:
        self.value += (DECAY if self.value else 1.0) * (seconds - self.value)
