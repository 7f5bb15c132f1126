"""The answers of a server on the model's thread: which wait, which run, and what they are told.

A round is one pass of the scheduler. Between two rounds, answers that have ended leave, and those
that wait take their places:

    request ─→ waiting ─→ its prompt is scored, if asked ─→ a row of the scheduler ─→ ended
                │                                                                     │
                └── the longest common beginning is taken from the pool   the text ───┘
                                                                          goes to the pool
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ..answer.position import Likelihood
from ..errors import EntropixError
from ..settings import Settings
from .events import Begun, Ended, Event, Failed, Stepped, Submission
from .metrics import ServerMetrics
from .prompt_cache import PromptCache

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ..engine.cached_text import CachedText, Prompt
    from ..engine.job import Job
    from ..engine.slot import Slot
    from ..models.base import LanguageModel
    from ..samplers.base import Sampler

SAMPLERS_KEPT = 16
"""Samplers that are kept for later requests: rows that share one are measured together."""
CHUNK = 128
"""Tokens of a prompt that are scored between two passes where no answer waits for them."""
CHUNK_BESIDE_ANSWERS = 32
"""Tokens of a prompt that are scored at once while answers wait for it."""


class _Beginning:
    """A prompt that one answer of a request begins with, or several."""

    def __init__(self, ids: tuple[int, ...], answers: int) -> None:
        self.ids = ids
        self.answers = answers
        """Those that have not ended."""
        self.shared = answers > 1
        self.text: CachedText | None = None
        self.cached = 0
        self.scores: list[Likelihood] = []
        self.prompt: Prompt | None = None


@dataclass(eq=False)
class _Entry:
    """One answer, wherever it is."""

    submission: Submission
    index: int
    prompt: tuple[int, ...]
    settings: Settings
    job: Job
    beginning: _Beginning
    row: Slot | None = None
    steps: int = 0
    told: bool = field(default=False)

    @property
    def tokens(self) -> int:
        """Return how many tokens its text may have; −1 for all that the context holds."""
        most = self.job.max_tokens
        return -1 if most < 0 else len(self.prompt) + most


class Rounds:
    """Runs submissions on one model; everything happens on the thread that loaded it."""

    def __init__(
        self,
        model: LanguageModel,
        tokenizer: TokenizerWrapper,
        batch: int,
        pool: PromptCache,
        metrics: ServerMetrics,
    ) -> None:
        """Begin without submissions.

        Args:
            model: from `load`.
            tokenizer: from `load`.
            batch: answers that run at once, if the memory holds them.
            pool: the prompt cache.
            metrics: where everything is counted.
        """
        from ..engine.scheduler import Scheduler
        from ..models.memory import cache_tokens

        self._model = model
        self._tokenizer = tokenizer
        self._batch = batch
        self._pool = pool
        self._metrics = metrics
        self._scheduler = Scheduler(model)
        self._cache_tokens = cache_tokens(model)
        self._waiting: deque[_Entry] = deque()
        self._scoring: deque[_Entry] = deque()
        self._running: dict[Slot, _Entry] = {}
        self._samplers: deque[tuple[Settings, Sampler]] = deque(maxlen=SAMPLERS_KEPT)
        self._noted: dict[Submission, None] = {}

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not (self._waiting or self._scoring or self._running)

    def take(self, submission: Submission) -> None:
        """Take a request on; one that cannot be carried out fails at once."""
        beginnings: dict[tuple[int, ...], _Beginning] = {}
        prompts = [tuple(prompt) for prompt, _ in submission.prompts]
        try:
            for index, (ids, settings) in enumerate(submission.prompts):
                prompt = tuple(ids)
                if prompt not in beginnings:
                    beginnings[prompt] = _Beginning(prompt, prompts.count(prompt))
                job = self._job(submission, prompt, settings)
                entry = _Entry(submission, index, prompt, settings, job, beginnings[prompt])
                self._waiting.append(entry)
        except EntropixError as error:
            submission.add(Failed(error))
        submission.flush()

    def advance(self) -> None:
        """Run one pass, admit and retire answers, and tell the submissions what happened."""
        self._drop_cancelled()
        self._admit()
        self._score()
        for row, step in self._scheduler.advance():
            entry = self._running[row]
            self._begin(entry)
            entry.steps += 1
            self._metrics.step(step)
            self._note(entry.submission, Stepped(entry.index, step))
        self._retire()
        self._metrics.gauge(
            waiting_answers=len(self._waiting) + len(self._scoring),
            running_answers=len(self._running),
            cached_texts=len(self._pool),
            cached_bytes=self._pool.bytes,
        )
        for submission in self._noted:
            submission.flush()
        self._noted.clear()

    def close(self, error: Exception) -> None:
        """End everything, with this error for all."""
        submissions = dict.fromkeys(entry.submission for entry in self._entries())
        self._scheduler.close()
        self._waiting.clear()
        self._scoring.clear()
        self._running.clear()
        for submission in submissions:
            submission.add(Failed(error))
            submission.flush()

    def drop_waiting(self, error: Exception) -> None:
        """End the submissions that have not begun, and let the others run."""
        begun = {entry.submission for entry in [*self._scoring, *self._running.values()]}
        for submission in dict.fromkeys(entry.submission for entry in self._waiting):
            if submission not in begun:
                submission.add(Failed(error))
                submission.flush()

    def _note(self, submission: Submission, event: Event) -> None:
        """Add an event, which is told at the end of the round."""
        submission.add(event)
        self._noted[submission] = None

    def _entries(self) -> Iterator[_Entry]:
        yield from self._waiting
        yield from self._scoring
        yield from self._running.values()

    def _job(self, submission: Submission, prompt: tuple[int, ...], settings: Settings) -> Job:
        """Return the job of an answer; whatever is wrong with it shows here, before any pass."""
        from ..answer.hooks import Hooks
        from ..engine.cached_text import CachedText
        from ..engine.job import Job, begin, prepare

        sampler = self._sampler(settings)
        hooks = Hooks(cancel=submission.cancel)
        job = Job.of_settings(prompt, settings, sampler, forced=submission.forced, hooks=hooks)
        begin(
            self._model,
            self._tokenizer,
            job,
            prepare(self._model, CachedText.empty(self._model), job),
        )
        return job

    def _sampler(self, settings: Settings) -> Sampler:
        """Return the sampler of some settings, the same one for all that decide alike."""
        alike = replace(settings, seed=0, max_tokens=0, top_logprobs=0, stop=())
        for known, sampler in self._samplers:
            if known == alike:
                return sampler
        sampler = settings.build_sampler()
        self._samplers.append((alike, sampler))
        return sampler

    def _drop_cancelled(self) -> None:
        for entries in (self._waiting, self._scoring):
            for entry in [entry for entry in entries if entry.submission.cancel.is_set()]:
                entries.remove(entry)
                self._finish(entry)

    def _admit(self) -> None:
        """Begin answers until as many run as may."""
        while self._waiting and len(self._running) + len(self._scoring) < self._batch:
            if not self._fits(self._waiting[0]):
                return
            entry = self._waiting.popleft()
            if entry.beginning.text is None:
                self._find_text(entry)
            if entry.submission.scored:
                self._scoring.append(entry)
            else:
                self._start(entry)

    def _fits(self, entry: _Entry) -> bool:
        """Tell whether the memory holds the answer beside those that run; one alone always may."""
        context = self._model.config.max_position_embeddings
        running = [entry, *self._scoring, *self._running.values()]
        held = [context if one.tokens < 0 else min(one.tokens, context) for one in running]
        return len(running) == 1 or sum(held) <= self._cache_tokens

    def _find_text(self, entry: _Entry) -> None:
        """Give an answer what the cache holds of its prompt."""
        from ..engine.cached_text import CachedText

        beginning, ids = entry.beginning, entry.prompt
        found = None
        if not entry.submission.scored:  # scores need every token of the prompt to be computed
            used = [row.text or row.prompt.text for row in self._running]
            found = self._pool.take(ids[:-1], used)
        beginning.text = found or CachedText.empty(self._model)
        beginning.cached = beginning.text.common(ids[:-1])
        self._metrics.count("prompt_tokens", len(ids))
        self._metrics.count("cached_prompt_tokens", beginning.cached)

    def _score(self) -> None:
        """Score a chunk of one prompt; answers whose prompts are complete go on."""
        from ..api.likelihoods import likelihoods

        if not self._scoring:
            return
        entry = self._scoring[0]
        beginning = entry.beginning
        done, last = len(beginning.scores), len(beginning.ids) - 1
        if done < last and beginning.text is not None:
            size = CHUNK_BESIDE_ANSWERS if self._running else CHUNK
            tokens = beginning.ids[done : min(done + size, last)]
            following = beginning.ids[done + 1 : done + 1 + len(tokens)]
            best = entry.settings.top_logprobs
            beginning.scores += likelihoods(self._model, beginning.text, tokens, following, best)
        if len(beginning.scores) == last:
            for ready in [one for one in self._scoring if one.beginning is beginning]:
                self._scoring.remove(ready)
                self._start(ready)

    def _start(self, entry: _Entry) -> None:
        """Give an answer its row, or end it where it may not have a single token."""
        from ..engine.cached_text import CachedText
        from ..engine.job import begin, prepare

        beginning = entry.beginning
        text = beginning.text or CachedText.empty(self._model)
        if beginning.prompt is None:
            beginning.prompt = prepare(self._model, text, entry.job, shared=beginning.shared)
            # A cache that cannot be cut anywhere may have been cut earlier.
            beginning.cached = min(beginning.cached, len(text.ids))
        entry.row = begin(self._model, self._tokenizer, entry.job, beginning.prompt)
        if entry.row is None:
            self._begin(entry)
            self._finish(entry)
            return
        self._running[entry.row] = entry
        self._scheduler.add(entry.row)

    def _begin(self, entry: _Entry) -> None:
        """Tell that an answer's prompt is computed, once."""
        if not entry.told:
            entry.told = True
            scores = tuple(entry.beginning.scores)
            self._note(entry.submission, Begun(entry.index, entry.beginning.cached, scores))
            self._metrics.first_token(time.perf_counter() - entry.submission.began)

    def _retire(self) -> None:
        """Let the answers leave that have ended, and keep their texts."""
        going_on = set(self._scheduler.rows)
        for row in [row for row in self._running if row not in going_on]:
            entry = self._running.pop(row)
            if row.error is not None:
                self._note(entry.submission, Failed(row.error))
            row.settle(entry.steps)
            self._finish(entry)

    def _finish(self, entry: _Entry) -> None:
        beginning, row = entry.beginning, entry.row
        beginning.answers -= 1
        self._note(entry.submission, Ended(entry.index))
        if beginning.shared:
            if beginning.answers == 0 and beginning.text is not None:
                self._pool.give(beginning.text)
        elif row is not None and row.error is not None:
            return  # what its cache holds may be the reason
        elif beginning.text is not None:
            self._pool.give(beginning.text)
