"""Many answers in the same passes; what their prompts have in common is computed once.

A pass reads all weights whatever the number of its rows, so more rows cost less each: on two cores
a token of the demo model takes 23 ms of a processor among 8 rows, and 14 ms among 24.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence

from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..engine.cached_text import CachedText, Prompt
from ..engine.forward import Engine
from ..engine.job import Job, begin, prepare
from ..engine.scheduler import PREFILL_CHUNK, Scheduler
from ..engine.slot import Slot
from ..models.base import LanguageModel
from ..models.memory import fitting_rows
from ..models.wired import wired_memory
from ..step import Step

ROWS = 32
"""Answers that run at once, where the memory allows so many."""

OnDone = Callable[[int, list[Step]], None]
"""Called with the number of an answer that is complete, and its steps."""


def answer_all(
    model: LanguageModel, tokenizer: TokenizerWrapper, jobs: Sequence[Job], on_done: OnDone
) -> None:
    """Run some answers, each with a limit of tokens; tell of every one as soon as it is complete.

    Those with similar prompts follow one another, in an order that depends on the prompts alone.
    """
    waiting = deque(sorted(range(len(jobs)), key=lambda number: tuple(jobs[number].prompt)))
    lengths = [len(job.prompt) + job.max_tokens for job in jobs]
    size = fitting_rows(model, lengths, ROWS)
    beginnings = _Beginnings(model, jobs)
    scheduler = Scheduler(model, steady=True)
    running: dict[Slot, tuple[int, list[Step]]] = {}
    with wired_memory.raised():
        while waiting or running:
            while waiting and len(running) < size:
                number = waiting.popleft()
                row = begin(model, tokenizer, jobs[number], beginnings.prompt(jobs[number]))
                if row is None:
                    on_done(number, [])
                    continue
                running[row] = number, []
                scheduler.add(row)
            for row, step in scheduler.advance():
                running[row][1].append(step)
            for row in [row for row in running if row.ended]:
                number, steps = running.pop(row)
                if row.error is not None:
                    raise row.error
                on_done(number, steps)


class _Beginnings:
    """Reads prompts, each from where it differs from the one before."""

    def __init__(self, model: LanguageModel, jobs: Sequence[Job]) -> None:
        self._model = model
        self._engine = Engine(model)
        self._left = Counter(tuple(job.prompt) for job in jobs)
        self._last: CachedText | None = None
        self._prompt: tuple[tuple[int, ...], Prompt] | None = None

    def prompt(self, job: Job) -> Prompt:
        """Return the prompt of a job, all of which is in the cache."""
        key = tuple(job.prompt)
        if self._prompt is None or self._prompt[0] != key:
            self._prompt = key, self._read(job, shared=self._left[key] > 1)
        return self._prompt[1]

    def _read(self, job: Job, *, shared: bool) -> Prompt:
        known = self._last or CachedText.empty(self._model)
        text = known.copy(known.common(job.prompt[:-1]))
        prompt = prepare(self._model, text, job, shared=shared)
        while prompt.unread:
            self._engine.prefill(text, prompt.unread[:PREFILL_CHUNK])
            del prompt.unread[:PREFILL_CHUNK]
        # An answer that has its prompt alone writes into it: what comes next needs a copy.
        self._last = text if shared else text.copy(len(text.ids))
        return prompt
