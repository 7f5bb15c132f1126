"""Many answers at once: they share the passes over the weights, and nothing else."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..answer.hooks import Hooks
from ..engine.cached_text import CachedText, Prompt
from ..engine.job import Job, begin, prepare
from ..engine.scheduler import Scheduler
from ..engine.slot import Slot
from ..errors import EntropixError, whole_number
from ..models.base import LanguageModel
from ..models.memory import fitting_rows
from ..models.wired import wired_memory
from ..profiles.profile import Profile
from ..samplers.base import Sampler
from ..settings import BATCH, Settings
from ..step import Step
from .batch_answer import BatchAnswer
from .generate import parse_options, prompt_tokens

WAIT_SECONDS = 0.1
"""Between two looks at whether answers that wait for a person were cancelled."""

OnProgress = Callable[[int, int], None]
"""Called with the answers that have ended and the number of all."""


def batch_generate(
    model: LanguageModel,
    tokenizer: TokenizerWrapper,
    prompts: Sequence[str | Iterable[int]],
    settings: Settings | Sequence[Settings] | None = None,
    *,
    n: int = 1,
    batch: int = BATCH,
    on_progress: OnProgress | None = None,
    **options: Any,
) -> Batch:
    """Answer many prompts at once.

    An answer is the same as alone, up to rounding, which depends on what shares a pass with it.

        batch = batch_generate(model, tokenizer, prompts, max_tokens=100, seed=0)
        for index, step in batch:
            ...
        for answer in batch.answers:
            print(answer.text)

    Args:
        model: from `load`.
        tokenizer: from `load`.
        prompts: each as for `stream_generate`. Equal ones share what is cached of them.
        settings: for all, or one for each prompt.
        n: answers to each prompt; those of one prompt follow one another, and each has the seed
            that follows the one before.
        batch: answers at once; fewer are run where the memory does not allow so many.
        on_progress: see `OnProgress`.
        **options: fields of `Settings`, which replace those of all `settings`; `hooks`, a `Hooks`
            for all or one for each prompt: while a person is asked (`choose`, which is called on
            another thread), the other answers go on; `draft_model`, a `Draft` that guesses for all;
            and `steady`: with True, running answers wait longer while a prompt is read, but on the
            same machine the same batch with the same seeds gives the same answers exactly.

    Returns:
        The batch: iterate over it, or call `finish`; one answer that fails has an `error`, and the
        others are not touched by it.

    Raises:
        TypeError: an option is unknown, or there are not as many settings or hooks as prompts.
        SettingsError, SamplerError: a value that cannot be used.
    """
    if isinstance(prompts, str):
        raise TypeError("prompts must be a list: put the one prompt into brackets")
    whole_number("n", n, least=1)
    whole_number("batch", batch, least=1)
    given = _one_each(settings, Settings, len(prompts), "settings")
    hooked = _one_each(options.pop("hooks", None), Hooks, len(prompts), "hooks")
    steady, draft = bool(options.pop("steady", False)), options.pop("draft_model", None)
    requests = []
    for prompt, own, hook in zip(prompts, given, hooked, strict=True):
        called = hook or Hooks()
        if draft is not None:
            called = replace(called, draft_model=draft)
        parsed, named = parse_options(own, options, ("hooks", "steady"))
        if named != Hooks():
            raise TypeError("callbacks of a batch are passed as hooks=Hooks(…)")
        one = prompt if isinstance(prompt, str) else list(prompt)
        requests += [_Request(one, parsed, sample, called) for sample in range(n)]
    return Batch(Scheduler(model, steady=steady), model, tokenizer, requests, batch, on_progress)


@dataclass(frozen=True)
class _Request:
    """One answer that was asked for."""

    prompt: str | Iterable[int]
    settings: Settings
    sample: int
    """Its number among the answers to one prompt."""
    hooks: Hooks


class Batch:
    """Answers that are generated together; iterate to get ``(index, step)`` as they come.

    A loop that is left may be taken up again, or `finish` called. `close` ends all answers where
    they are; one that had not come to its end has an `error` then.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        model: LanguageModel,
        tokenizer: TokenizerWrapper,
        requests: Sequence[_Request],
        batch: int,
        on_progress: OnProgress | None,
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._on_progress = on_progress
        self._scheduler = scheduler
        self._samplers: list[tuple[Settings, str | Path | Profile, Sampler]] = []
        self._prompts: dict[tuple[int, ...], Prompt] = {}
        self._rows: dict[Slot, BatchAnswer] = {}
        self.answers: list[BatchAnswer] = []
        """In the order of the prompts, each as far as it has come."""
        jobs = [self._prepare(request) for request in requests]
        self._jobs = deque(job for job in jobs if job is not None)
        self._left = Counter(tuple(job.prompt) for _, job in self._jobs)
        lengths = [_longest(job) for _, job in self._jobs]
        self.size = fitting_rows(model, lengths, min(batch, len(lengths)))
        """Answers that are run at once."""
        self._question: _Question | None = None
        self._steps = self._run()

    def finish(self) -> list[BatchAnswer]:
        """Run what is left to its end, and return all answers in order."""
        for _ in self:
            pass
        return self.answers

    def close(self) -> None:
        """End all answers that are not complete."""
        self._steps.close()
        self._cut_off()

    def __iter__(self) -> Iterator[tuple[int, Step]]:
        """Return the steps that are still to come, each with the index of its answer."""
        return self._steps

    def _run(self) -> Generator[tuple[int, Step], None, None]:
        with wired_memory.raised():
            try:
                if not (self._jobs or self._rows):
                    self._tell()
                while self._jobs or self._rows:
                    self._admit()
                    committed = [(self._rows[row], s) for row, s in self._scheduler.advance()]
                    for answer, step in committed:
                        answer.steps.append(step)
                    yield from ((answer.index, step) for answer, step in committed)
                    self._ask()
                    self._retire()
            finally:
                self._scheduler.close()
                self._cut_off()

    def _cut_off(self) -> None:
        """Say of the answers that were not complete that they are not."""
        for answer in [*self._rows.values(), *(answer for answer, _ in self._jobs)]:
            answer.error = EntropixError("the batch was closed before this answer was complete")
        self._rows.clear()
        self._jobs.clear()

    def _prepare(self, request: _Request) -> tuple[BatchAnswer, Job] | None:
        """Return the answer and job of a request; None where it cannot be used."""
        answer = BatchAnswer(len(self.answers))
        self.answers.append(answer)
        try:
            tokens = prompt_tokens(self._tokenizer, request.prompt)
            answer.prompt_tokens = len(tokens)
            seed = request.settings.seed
            own = seed if seed is None else seed + request.sample
            settings, sampler = self._resolve(replace(request.settings, seed=own))
            answer.settings = settings
            job = Job.of_settings(tokens, settings, sampler, hooks=request.hooks)
            # Whatever is wrong with the prompt or the thinking text is found before any pass.
            begin(self._model, self._tokenizer, job, prepare(self._model, self._nothing(), job))
        except EntropixError as error:
            answer.error = error
            return None
        return answer, job

    def _nothing(self) -> CachedText:
        return CachedText.empty(self._model)

    def _resolve(self, settings: Settings) -> tuple[Settings, Sampler]:
        """Return settings with their profile and a seed, and their sampler.

        A profile takes milliseconds to read, and rows are measured together where they share a
        sampler. So both are made once for all settings that differ in nothing that a sampler reads.
        """
        alike = replace(
            settings, seed=0, max_tokens=0, attention_layers="last", top_logprobs=0, stop=()
        )
        known = next((known for known in self._samplers if known[0] == alike), None)
        if known is None:
            resolved = alike.resolved(self._model.config)
            known = alike, resolved.profile, resolved.build_sampler()
            self._samplers.append(known)
        _, profile, sampler = known
        own = replace(settings, profile=profile, changes={})
        return own.resolved(self._model.config), sampler

    def _admit(self) -> None:
        """Begin answers until as many run as may."""
        while self._jobs and len(self._rows) < self.size:
            answer, job = self._jobs.popleft()
            row = begin(self._model, self._tokenizer, job, self._prompt(job))
            if row is None:
                self._tell()
                continue
            self._rows[row] = answer
            self._scheduler.add(row)

    def _prompt(self, job: Job) -> Prompt:
        """Return a job's prompt; jobs with the same one share what is cached of it."""
        key = tuple(job.prompt)
        self._left[key] -= 1
        if key in self._prompts:
            return self._prompts[key] if self._left[key] else self._prompts.pop(key)
        prompt = prepare(self._model, self._nothing(), job, shared=self._left[key] > 0)
        if self._left[key]:
            self._prompts[key] = prompt
        return prompt

    def _ask(self) -> None:
        """Have people asked, one after the other, and go on with what they chose."""
        asking = [row for row in self._rows if row.asked is not None and row.choose is not None]
        if self._question is None and asking:
            self._question = _Question(asking[0])
        if self._question is None:
            return
        if len(asking) == len(self._rows):  # nothing else can be done meanwhile
            self._question.join(WAIT_SECONDS)
        if not self._question.is_alive():
            self._question.reply()
            self._question = None

    def _retire(self) -> None:
        """Remove the answers that have ended, keep their errors, and report progress."""
        running = set(self._scheduler.rows)
        for row in [row for row in self._rows if row not in running]:
            self._rows.pop(row).error = row.error
            self._tell()

    def _tell(self) -> None:
        if self._on_progress is not None:
            waiting = len(self._jobs) + len(self._rows)
            self._on_progress(len(self.answers) - waiting, len(self.answers))


class _Question(threading.Thread):
    """Asks a person, so that other answers go on meanwhile; nobody waits for it at the end."""

    def __init__(self, row: Slot) -> None:
        """Ask which rollout is to be the text of a row."""
        super().__init__(name="choose", daemon=True)
        self._row = row
        self._fork, self._choose = row.asked, row.choose
        self._chosen: int | None = None
        self._error: Exception | None = None
        self.start()

    def run(self) -> None:
        """Wait for the person."""
        try:
            if self._choose is not None and self._fork is not None:
                self._chosen = self._choose(self._fork)
        except Exception as error:  # that answer's alone
            self._error = error

    def reply(self) -> None:
        """Let the row go on, if it still waits."""
        if self._row.asked is None:  # it was cancelled meanwhile
            return
        try:
            if self._error is not None:
                raise self._error
            self._row.reply(self._chosen if self._chosen is not None else -1)
        except Exception as error:
            self._row.end(error)


def _longest(job: Job) -> int:
    """Return how many tokens the text of a job may have; −1 for all that the context holds."""
    return -1 if job.max_tokens < 0 else len(job.prompt) + job.max_tokens


def _one_each(given: Any, kind: type, count: int, name: str) -> list[Any]:
    if given is None or isinstance(given, kind):
        return [given] * count
    listed = list(given)
    if len(listed) != count or not all(isinstance(item, kind) for item in listed):
        raise TypeError(f"{name} must be one {kind.__name__}, or a list of {count}: one a prompt")
    return listed
