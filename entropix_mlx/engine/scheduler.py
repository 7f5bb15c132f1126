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
   run meanwhile (`_chunk`). Slots whose prompt is complete begin.
2. Queue: the rows of all slots start as the next pass.
3. Read: the pass before is read; each slot's answer goes on from it and commits steps.

Where a pass takes so long that somebody notices, it is read in the turn that queued it, and only
some slots take part (`_taking_part`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import accumulate

from ..models.base import LanguageModel
from ..models.device import prefill_chunk
from ..step import Step
from .cached_text import Prompt
from .forward import Engine, Pass, kind_of
from .slot import Slot

SMALLEST_CHUNK = 16
"""Tokens of a prompt that are computed at once at least."""
LONG_PASS = 0.2
"""Seconds of a pass that whoever waits for the first token notices."""
LONGEST_PASS = 0.8
"""Seconds that a pass may take where there are several answers, which then take turns."""
LONGEST_CHUNK = 1.4
"""Seconds that answers wait between two passes for the prompts of others."""
LONGEST_SILENCE = 3.0
"""Seconds without a token, as while a fork is compared, after which an answer is urgent, …"""
SILENT_PASSES = 8
"""… or the time of so many passes, if that is longer."""
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
        self._shortest_first = self._only_urgent = False
        self._silent: list[Slot] = []
        """Answers for which prompts give way in this turn, and perhaps other answers."""
        self._credit = 0.0
        """Seconds that turns for some only may take before others must have had as many."""
        self._rows = 0
        self._pass: Pass | None = None
        self._pass_seconds = _RunningMean()
        self._row_seconds = _RunningMean()
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
        self._silent = self._find_silent()
        turn = time.perf_counter()
        waited = self._prefill()
        # Where passes take long, none is in flight between two turns: who asks meanwhile would have
        # to wait for it.
        pipelined = self._pipelined and not self._passes_are_long
        began = time.perf_counter()
        steps: list[tuple[Slot, Step]] = []
        if not pipelined and self._pass is not None:
            steps += self._read_last()
        queued = self._queue()
        steps += self._read()
        self._pass = queued
        if not pipelined:
            steps += self._read_last()
        ended = time.perf_counter()
        spent = turn - ended if self._only_urgent or self._silent else ended - turn
        self._credit = min(LONGEST_PASS, self._credit + spent)
        seconds = waited + ended - began
        if steps and not self._only_urgent:
            self._pass_seconds.add(seconds)
            self._row_seconds.add(seconds / max(self._rows, 1))
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
            idle = slot.sits_out or slot.undecided is not None or slot in self._waiting
            if idle and slot.cancelled:
                slot.end()
        self._waiting = [slot for slot in self._waiting if not slot.ended]
        # 2. Prompts are computed as far as the chunk goes: in one turn those first of which least
        # is left, in the next those that came first, so that none waits for ever. One that begins
        # as another takes that over when it is computed.
        waited, left = 0.0, self._chunk()
        waiting = [slot for slot in self._waiting if not slot.sits_out]
        prompts = list(dict.fromkeys(slot.prompt for slot in waiting))
        self._shortest_first = not self._shortest_first
        if self._shortest_first:
            prompts.sort(key=lambda p: p.unread if p.opened else len(p.tokens))
        for prompt in prompts:
            if left > 0 and not any(map(prompt.follows, prompts)) and prompt.unread:
                waited += self._finish_pass()  # or its time would be taken for that of the chunk
                left -= self._read_chunk(prompt, left)
        # 3. Answers begin whose prompt is in the cache.
        for slot in [slot for slot in waiting if slot.prompt.complete and not slot.ended]:
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
        """Return how many tokens of prompts to compute now: fewer where answers wait for it, more
        where more wait for theirs."""
        if self._silent:
            return 0
        if self._steady or all(slot.sits_out for slot in self._running):
            return prefill_chunk()
        if not self._token_seconds.value or not self._pass_seconds.value:
            return SMALLEST_CHUNK
        waiting = len({slot.prompt for slot in self._waiting if not slot.sits_out})
        pause = self._pass_seconds.value * (1 + 2 * waiting)
        seconds = min(pause, self._pass_seconds.value + LONGEST_CHUNK)
        tokens = seconds / self._token_seconds.value
        return int(min(max(tokens, SMALLEST_CHUNK), prefill_chunk()))

    # ── 2. Queue ────────────────────────────────────────────────────────────────────────────────

    def _queue(self) -> Pass | None:
        """Start the next pass: what was asked for, and what is expected where that is not known."""
        # 1. Who does not take part has no rows.
        for slot in self._running:
            slot.skip()
        taking_part = self._taking_part()
        # 2. Slots of one kind follow one another; the kinds, in the order in which they came. Each
        #    brings its rows, which need not be known to the host yet.
        kinds = list(dict.fromkeys(kind_of(slot.resolved) for slot in taking_part))
        slots = sorted(taking_part, key=lambda slot: kinds.index(kind_of(slot.resolved)))
        queued = [(slot, slot.queue(self._pass, alone=len(slots) == 1)) for slot in slots]
        groups = [group for _, found in queued for group in found]
        if not groups:
            return None
        self._rows = sum(group.tokens.size for group in groups)
        following = self._engine.queue(groups)
        # 3. Each is shown where its rows are.
        first = 0
        for slot, found in queued:
            size = sum(group.tokens.size for group in found)
            slot.queued(first)
            first += size
        return following

    def _taking_part(self) -> list[Slot]:
        """Return whose rows are in the next pass.

        Where passes take long, first tokens and answers that were silent for long have some to
        themselves, for half of the time. No pass has more rows than fit into `LONGEST_PASS`: those
        that are silent for longest come first, and who took part comes last in the next.
        """
        ready = [slot for slot in self._running if not slot.sits_out]
        if not self._passes_are_long:
            self._only_urgent = False
            return ready
        new = [slot for slot in ready if slot.is_new]
        urgent = list(dict.fromkeys([*new, *self._silent]))
        self._only_urgent = bool(urgent) and self._credit > 0
        most = LONGEST_PASS / self._row_seconds.value
        if self._only_urgent:
            return _first_rows(urgent, most)
        part = _first_rows(ready, most)
        self._running.sort(key=part.__contains__)
        return part

    def _find_silent(self) -> list[Slot]:
        """Return the answers that were silent for long, those first that were so for longest."""
        if self._steady or self._credit <= 0:
            return []
        longest = max(LONGEST_SILENCE, SILENT_PASSES * self._pass_seconds.value)
        since = time.perf_counter() - longest
        return sorted(
            (slot for slot in self._running if slot.is_silent(since)), key=lambda slot: slot.spoke
        )

    @property
    def _passes_are_long(self) -> bool:
        """Whether somebody notices: the more rows a pass has, the more tokens a second it makes."""
        if self._steady or self._pass_seconds.value <= LONG_PASS:
            return False
        return any(slot.client is not None for slot in self.slots)

    # ── 3. Read ─────────────────────────────────────────────────────────────────────────────────

    def _read(self) -> Iterator[tuple[Slot, Step]]:
        for slot in list(self._running):
            slot.receive(self._pass)
            yield from ((slot, step) for step in slot.take_steps())

    def _read_last(self) -> list[tuple[Slot, Step]]:
        """Read the pass in flight without another one behind it."""
        for slot in self._running:
            slot.skip()
        steps = list(self._read())
        self._pass = None
        return steps


def _first_rows(slots: Sequence[Slot], most: float) -> list[Slot]:
    """Return the first of some slots, that have at most so many rows together, or one."""
    widths = accumulate(slot.width for slot in slots)
    part = [slot for slot, width in zip(slots, widths, strict=True) if width <= most]
    return part or list(slots[:1])


class _RunningMean:
    """A mean of durations in which the newest count most."""

    def __init__(self) -> None:
        self.value = 0.0

    def add(self, seconds: float) -> None:
        self.value += (DECAY if self.value else 1.0) * (seconds - self.value)
