"""The only loop: sequences run as rows of one batch, which takes one pass after the other.

    pass      1        2        3        4        5         one column is one forward pass
    answer A  the   →  sky   →  is    →  blue  →  .         every draw was committed
    answer B  well  →  [so]     Wait  →  ,     →  what      a thought: "so" is taken back
    answer C  it    →  [is]     five branches ……………………      a fork: five rows for C

One step, in order:

1. Prompts: sequences are admitted as they came, while there are places and memory, and a chunk of
   their prompts is read. What begins as a text of the prompt cache goes on from there.
2. The next forward pass is queued with the tokens that the last pass drew, before they are read.
3. The last pass is read, each sequence takes its row, and its `Step`s are returned. Where one wants
   another token than the drawn one, that is taken back, and its row sits out one pass. A position's
   randomness depends on nothing but the seed and the position, so no later draw changes.
4. What follows the forward pass is queued: masks of constraints are made while that is computed.

Rows are padded on the left in mlx-lm's batch caches. A fork is copies of a row; the losers are
dropped. Where a cache cannot take tokens back, nothing is queued ahead while an intervention may
ask for another token. Models whose rows cannot be batched have a lane for each row.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Generator
from dataclasses import replace
from functools import cached_property
from typing import Any

import mlx.core as mx
from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..answer.forks import ForkTrial
from ..errors import ContextLengthError
from ..models import caches
from ..models.base import LanguageModel
from ..models.device import CLEAR_EVERY, cache_tokens, prefill_chunk
from ..samplers.row import Row
from ..step import Step
from .passes import Entry, Lane, Pass
from .prompts import PromptCache, read_likelihoods, read_prompt
from .sequence import Sequence, cached_tokens
from .speculation import MOST, Speculation, longest_proposal

ABSENT = -1  # in place of the token of an entry that was not in a pass
SHARED_CHUNK = 4  # times as short are the chunks of a prompt for which running answers wait


class Batch:
    """Answers on one model. It belongs on the thread that loaded the model.

    As a context manager, it ends all answers when it is left.
    """

    def __init__(
        self,
        model: LanguageModel,
        tokenizer: TokenizerWrapper,
        *,
        size: int = 1,
        cache: PromptCache | None = None,
        pipelined: bool = True,
    ) -> None:
        """Begin without answers.

        Args:
            model, tokenizer: from `load`.
            size: the most answers that run at once.
            cache: of texts, for prompts that begin as they do.
            pipelined: whether to queue a pass before the last one was read; the steps are the same.
        """
        self.model = model
        self.tokenizer = tokenizer
        self.size = size
        self._cache = cache
        self._pipelined = pipelined
        self._waiting: deque[Sequence] = deque()
        self._active: list[Sequence] = []
        # Sequences whose prompt is read, the cache, and how many tokens of the prompt it holds.
        self._reading: deque[tuple[Sequence, list[Any], int]] = deque()
        self._lanes: list[Lane] = []
        self._pass: Pass | None = None
        self._forks: dict[Sequence, Forking] = {}
        self._speculation: tuple[Sequence, Speculation] | None = None
        self._passes = 0

    def __enter__(self) -> Batch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def running(self) -> list[Sequence]:
        """The sequences that have a place."""
        return [sequence for sequence in self._active if not sequence.ended]

    @property
    def waiting(self) -> list[Sequence]:
        return list(self._waiting)

    @property
    def idle(self) -> bool:
        return not (self._waiting or self._active)

    def capacity(self, sequences: Collection[Sequence]) -> int:
        """Return how many of some answers run at once, if all become as long as they may."""
        longest = max(map(self._held, sequences), default=1)
        return max(1, min(self.size, self._cache_tokens // max(1, longest)))

    def add(self, sequence: Sequence) -> Sequence:
        """Put an answer into the queue."""
        if sequence.resolved.settings.max_tokens == 0 and sequence.scored is None:
            sequence.end()
        self._waiting.append(sequence)
        return sequence

    def step(self) -> list[tuple[Sequence, Step]]:
        """Admit and read prompts, run one pass, and return the steps that were committed.

        An answer that fails has its `error` set and leaves; the others are not touched by it.
        """
        self._end_cancelled()
        self._admit()
        self._read_prompts()
        self._go_on_with_forks()
        queued = self._queue_ahead()
        self._read(queued)
        self._go_on_with_forks()
        if queued is None and self._lanes:
            queued = Pass(self.model, self._lanes, proposed=self._proposed())
        if queued is not None:
            queued.sample()
        self._pass = queued
        self._passes += 1
        if self._passes % CLEAR_EVERY == 0:
            mx.clear_cache()
        return self._take_steps()

    def _take_steps(self) -> list[tuple[Sequence, Step]]:
        """Return the steps that were committed, and let the answers go that have ended."""
        steps: list[tuple[Sequence, Step]] = []
        for sequence in self._active:
            steps += ((sequence, step) for step in sequence.steps)
            sequence.steps.clear()
        self._active = [sequence for sequence in self._active if not sequence.ended]
        if self.model.counts is not None:
            self.model.counts.add(steps)
        return steps

    def stream(self, sequence: Sequence) -> Generator[Step, None, None]:
        """Yield the steps of the only answer, and end it when the generator is left. Raises
        `NonFiniteLogitsError` if the model computed NaN or infinite logits."""
        taken = 0
        try:
            with self:
                while not sequence.ended or sequence.steps:
                    for _, step in self.step():
                        taken += 1
                        yield step
                        if step.finish_reason or sequence.cancelled:
                            return
                    sequence.ask()
            if sequence.error is not None:
                raise sequence.error
        finally:
            shorten(sequence, taken)

    def close(self) -> None:
        """End all answers; the caches that were given hold what was committed."""
        for sequence in self._waiting:
            sequence.end()
        self._waiting.clear()
        for sequence, cache, done in self._reading:
            sequence.end()
            self._store(sequence, cache, sequence.base + max(0, done))
        self._reading.clear()
        for lane in self._lanes:
            for entry in (entry for entry in lane.entries if entry.branch is None):
                entry.sequence.end()
                self._store(entry.sequence, lane.extract(entry), entry.length)
        for sequence in self._active:
            sequence.end()
        self._go_on_with_forks()
        self._lanes, self._pass, self._speculation = [], None, None
        self._active = []

    # ── 1. Prompts ──────────────────────────────────────────────────────────────────────────────

    def _end_cancelled(self) -> None:
        """End the answers that were cancelled and that no pass will see to."""
        for sequence in self._waiting:
            if sequence.cancelled:
                sequence.end()
        for sequence, cache, done in self._reading:
            if sequence.cancelled or sequence.ended:
                sequence.end()
                self._store(sequence, cache, sequence.base + max(0, done))
        self._waiting = deque(each for each in self._waiting if not each.ended)
        self._reading = deque(each for each in self._reading if not each[0].ended)

    def _admit(self) -> None:
        while self._waiting and len(self.running) < self.size:
            sequence = self._waiting[0]
            running = self.running
            if running and sum(map(self._held, (sequence, *running))) > self._cache_tokens:
                return
            self._active.append(self._waiting.popleft())
            if sequence.length >= self._cache_tokens:
                sequence.end(
                    ContextLengthError(
                        f"the prompt has {sequence.length:,} tokens, and the memory beside the"
                        f" model holds {self._cache_tokens:,}: shorten it, or choose a smaller or"
                        " more strongly quantized model"
                    )
                )
                continue
            self._reading.append((sequence, [], -1))

    def _held(self, sequence: Sequence) -> int:
        return int(min(sequence.longest, self.model.config.max_position_embeddings))

    @cached_property
    def _cache_tokens(self) -> int:
        return cache_tokens(self.model)

    def _read_prompts(self) -> None:
        """Read a chunk of the prompts, first come, first served; start those that are complete."""
        left = prefill_chunk() // (SHARED_CHUNK if self._lanes else 1)
        while self._reading and left > 0:
            sequence, cache, done = self._reading[0]
            text = [*sequence.prompt, *sequence.tokens]
            try:
                if done < 0:
                    cache, done = self._begun(sequence, text)
                sequence.report_prefill(done - sequence.cached)
                if sequence.cancelled:
                    return
                end = min(done + left, len(text) - 1)
                if sequence.scored is not None:
                    sequence.likelihoods = read_likelihoods(
                        self.model, text, cache, sequence.scored
                    )
                    end = len(text) - 1
                elif end > done:
                    read_prompt(self.model, text[done:end], cache)
            except Exception as error:  # this answer's alone: the others go on
                self._reading.popleft()
                sequence.end(error)
                continue
            left -= max(1, end - done)
            self._reading[0] = sequence, cache, end
            if end == len(text) - 1:
                self._reading.popleft()
                self._start(sequence, cache, text)

    def _begun(self, sequence: Sequence, text: list[int]) -> tuple[list[Any], int]:
        """Return the cache that a prompt goes on from, and how much of the prompt it holds."""
        sequence.begun = True
        if sequence.cache is not None:
            return sequence.cache, 0
        found = None
        if self._cache is not None and sequence.scored is None:
            found, sequence.cached = self._cache.fetch(text)
        return (self.model.make_cache() if found is None else found), sequence.cached

    def _start(self, sequence: Sequence, cache: list[Any], text: list[int]) -> None:
        """Begin an answer whose prompt was read but for the last token."""
        try:
            sequence.report_prefill(len(text) - sequence.cached)
        except Exception as error:
            sequence.end(error)
        sequence.prefilled = True
        others = self._waiting or self._reading
        if self._cache is not None and sequence.cache is None and others:
            self._cache.insert(text[:-1], cache)  # for those that wait
        if sequence.ended or sequence.resolved.settings.max_tokens == 0:
            sequence.end()
            self._store(sequence, cache, sequence.length - 1)
            return
        entry = Entry(sequence, sequence.base + len(text) - 1)
        entry.known = text[-1]
        self._join([entry], cache)

    def _join(self, entries: list[Entry], cache: list[Any]) -> None:
        """Add entries to the batch, whose caches are the rows of one."""
        if not self.model.can_batch and len(entries) > 1:
            for row, entry in enumerate(entries):
                self._lanes.append(Lane([entry], caches.extract(cache, row)))
        elif not self.model.can_batch or not self._lanes:
            self._lanes.append(Lane(entries, cache))
        else:
            self._lanes[0].extend(entries, cache)

    # ── 2. Queue ────────────────────────────────────────────────────────────────────────────────

    def _queue_ahead(self) -> Pass | None:
        """Start the next pass with the tokens that the last one draws, if that is likely right."""
        last = self._pass
        if last is None or not self._pipelined or last.proposed or not self._lanes:
            return None
        goes_on = False
        for lane in self._lanes:
            for entry in lane.entries:
                if entry in last.row_of and entry not in last.dropped:
                    if entry.branch is None:
                        entry.known = entry.sequence.expected()
                    if not (entry.certain or caches.can_take_back(lane.cache)):
                        return None
                ends = entry.branch is None and entry.sequence.ends_next
                goes_on |= entry.known is not None or not ends
        if not goes_on or self._proposed():  # which have to follow a token that is known
            return None
        return Pass(self.model, self._lanes, last)

    def _proposed(self) -> list[int]:
        """Return tokens that speculation proposes to follow the text, where it is the only one."""
        [lane, *lanes] = self._lanes
        [entry, *entries] = lane.entries
        sequence = entry.sequence
        mode = sequence.resolved.settings.speculation
        if lanes or entries or entry.branch is not None or sequence.ends_next or mode == "off":
            return []
        if not caches.can_take_back(lane.cache, MOST + 1):
            return []
        if self._speculation is None or self._speculation[0] is not sequence:
            self._speculation = sequence, Speculation(longest_proposal(mode, self.model))
        speculation = self._speculation[1]
        speculation.follow(entry.tokens)
        proposed = speculation.propose()
        if entry.constraint is not None:
            proposed = entry.constraint.fitting(proposed)
        return proposed[: max(0, sequence.room - 1)]

    # ── 3. Read ─────────────────────────────────────────────────────────────────────────────────

    def _read(self, queued: Pass | None) -> None:
        """Read the last pass, have each entry take its row, and undo what was queued wrongly."""
        last = self._pass
        if last is None:
            return
        drawn: dict[Entry, int] = {}
        wanted: dict[Entry, int | ForkTrial | None] = {}
        for entry, rows in zip(last.entries, last.read(), strict=True):
            if entry in last.dropped or entry.sequence.ended:
                continue
            drawn[entry] = rows[0].token
            try:
                wanted[entry] = self._taken(last, entry, rows)
            except Exception as error:  # this answer's alone: the others go on
                entry.sequence.end(error)
                wanted[entry] = None
        for lane in self._lanes:
            self._settle(lane, wanted, drawn, queued)
        self._lanes = [lane for lane in self._lanes if lane.entries]

    def _taken(self, last: Pass, entry: Entry, rows: list[Row]) -> int | ForkTrial | None:
        """Have an entry take its row, and those of proposed tokens as far as they are right."""
        if not last.proposed:
            return entry.take(rows[0])
        steps, proposed, accepted = entry.sequence.steps, len(last.proposed), 0
        wanted: int | ForkTrial | None = None
        for token, row in zip((*last.proposed, None), rows, strict=True):
            before = len(steps)
            wanted = entry.take(row)
            if len(steps) > before:
                steps[before] = replace(
                    steps[before],
                    proposed=0 if accepted else proposed,
                    accepted=1 if accepted else 0,
                )
            if wanted != token:
                break
            accepted += 1
        caches.trim(self._lanes[0].cache, proposed - accepted)
        entry.length -= proposed - accepted
        if self._speculation is not None:
            self._speculation[1].receive(proposed, accepted)
        return wanted

    def _settle(
        self,
        lane: Lane,
        wanted: dict[Entry, int | ForkTrial | None],
        drawn: dict[Entry, int],
        queued: Pass | None,
    ) -> None:
        """Let the entries of a lane go on with the tokens that they want; others leave it."""
        back: list[Entry] = []
        gone: list[Entry] = []
        for entry in lane.entries:
            token = wanted.get(entry, ABSENT)
            if entry.sequence.ended or not isinstance(token, int):
                gone.append(entry)
            elif token == ABSENT:  # it was not in the pass that was read
                continue
            elif queued is None:
                entry.known = token
            elif token != queued.fed.get(entry, drawn[entry]):
                entry.known = token
                back.append(entry)
        if queued is not None:
            queued.dropped.update(gone, back)
        for entry in gone:
            self._leave(entry, lane.extract(entry), wanted.get(entry))
        lane.keep([entry for entry in lane.entries if entry not in gone])
        lane.take_back(back)

    def _leave(self, entry: Entry, cache: list[Any], wanted: int | ForkTrial | None) -> None:
        """Take note of the cache of an entry that leaves its lane."""
        sequence = entry.sequence
        if entry.branch is not None:
            entry.cache = cache
        elif isinstance(wanted, ForkTrial):
            caches.trim(cache, entry.length - sequence.length)
            self._forks[sequence] = Forking(sequence, cache, wanted)
        else:
            sequence.end()
            self._store(sequence, cache, entry.length)

    def _store(self, sequence: Sequence, cache: list[Any], length: int) -> None:
        """Keep the cache of a text that has ended, without what was not committed."""
        text = [*sequence.prompt, *sequence.tokens]
        given = sequence.cache is not None
        if not cache:  # nothing was read yet
            return
        excess = length - sequence.base - len(text) + given
        if excess > 0 and caches.can_trim(cache, excess):
            caches.trim(cache, excess)
            length -= excess
        if sequence.cache is not None:
            sequence.cache[:] = cache
            return
        sound = sequence.error is None and sequence.scored is None and length <= len(text)
        if self._cache is not None and sound:
            self._cache.insert(text[:length], cache)

    # ── Forks ───────────────────────────────────────────────────────────────────────────────────

    def _go_on_with_forks(self) -> None:
        """Begin the branches of new forks, and end those that are decided."""
        running = {entry.sequence for lane in self._lanes for entry in lane.entries}
        for sequence, forking in list(self._forks.items()):
            if sequence.ended or (sequence.cancelled and sequence not in running):
                del self._forks[sequence]
                sequence.end()
                self._store(sequence, forking.cache, forking.length)
                continue
            try:
                self._go_on_with(forking)
            except Exception as error:  # this answer's alone: the others go on
                sequence.end(error)
                self._forks.pop(sequence, None)

    def _go_on_with(self, forking: Forking) -> None:
        sequence, trial = forking.sequence, forking.trial
        if forking.changed:
            trial.report()
        if not forking.entries:
            forking.begin()
            if living := [entry for entry in forking.entries if entry.known is not None]:
                self._join(living, caches.fork(forking.cache, len(living)))
        if trial.living or sequence.undecided is not None:
            return
        sequence.ask_person()
        if sequence.undecided is None:
            del self._forks[sequence]
            entry, cache = forking.end(self.model)
            if sequence.over:
                sequence.end()
                self._store(sequence, cache, entry.length)
            else:
                self._join([entry], cache)


class Forking:
    """A fork while its branches are followed."""

    def __init__(self, sequence: Sequence, cache: list[Any], trial: ForkTrial) -> None:
        self.sequence = sequence
        self.trial = trial
        self.cache = cache  # of the text up to the fork
        self.length = sequence.length
        self.entries: list[Entry] = []
        self._reported = -1

    @property
    def changed(self) -> bool:
        """Whether the branches have grown since this was asked last."""
        followed = sum(len(branch.rows) + branch.beyond for branch in self.trial.branches)
        changed, self._reported = followed != self._reported, followed
        return changed

    def begin(self) -> None:
        """Make an entry for each branch; those that go on know their first token."""
        for branch in self.trial.branches:
            entry = Entry(self.sequence, self.length, branch)
            self.entries.append(entry)
            if branch.living:
                entry.known = branch.tokens[0]
                if entry.constraint is not None:
                    entry.constraint.add(entry.known)

    def end(self, model: LanguageModel) -> tuple[Entry, list[Any]]:
        """Commit the branch that won; return the entry of the text, and its cache."""
        number = self.trial.fork().winner
        winner, tokens = self.entries[number], self.trial.branches[number].tokens
        tokens = tokens[: self.sequence.end_fork()]
        cache, length = self.cache, self.length
        excess = winner.length - length - len(tokens) + 1
        if winner.cache is not None and caches.can_trim(winner.cache, excess):
            caches.trim(winner.cache, excess)
            cache, length = winner.cache, winner.length - excess
        read = tokens[length - self.length : -1]
        if read:
            read_prompt(model, read, cache)
        entry = Entry(self.sequence, length + len(read))
        entry.known = tokens[-1]
        return entry, cache


def shorten(sequence: Sequence, taken: int) -> None:
    """Remove from the cache that was given what nobody took, and the text of a stop string."""
    if sequence.cache is None or not sequence.prefilled:
        return
    new = min(max(taken - 1, 0), sequence.committed)
    length = sequence.base + len(sequence.prompt) + sequence.continued + new
    excess = cached_tokens(sequence.cache) - length
    if excess > 0 and caches.can_trim(sequence.cache, excess):
        caches.trim(sequence.cache, excess)
