"""Many answers at once: they share the passes over the weights, and nothing else."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..errors import EntropixError
from ..models.llama import Model
from ..policies.policy import Policy
from ..profiles.profile import Profile
from ..settings import BATCH, Settings
from ..step import Step
from .generation import parse_options, prompt_tokens
from .hooks import Hooks
from .job import Job, begin, prepare
from .memory import fitting_rows
from .row import Row
from .scheduler import Scheduler
from .text import Prompt, Text
from .wired import wired_memory

OnProgress = Callable[[int, int], None]
"""Called with the answers that have ended and the number of all."""


@dataclass
class BatchAnswer:
    """One answer of a batch, as far as it has come."""

    index: int
    prompt_tokens: int
    seed: int | None
    """None where the settings could not be used."""
    steps: list[Step] = field(default_factory=list)
    error: Exception | None = None
    """What ended the answer, if it was not its own end."""

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(step.text for step in self.steps)


def batch_generate(
    model: Model,
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
            another thread), the other answers go on; and `steady`: with True, running answers wait
            longer while a prompt is read, but on the same machine the same batch with the same
            seeds gives the same answers exactly.

    Returns:
        The batch: iterate over it, or call `finish`; one answer that fails has an `error`, and the
        others are not touched by it.

    Raises:
        TypeError: an option is unknown, or there are not as many settings or hooks as prompts.
        SettingsError, PolicyError: a value that cannot be used.
    """
    given = _one_each(settings, Settings, len(prompts), "settings")
    hooked = _one_each(options.pop("hooks", None), Hooks, len(prompts), "hooks")
    steady = bool(options.pop("steady", False))
    requests = []
    for prompt, own, hook in zip(prompts, given, hooked, strict=True):
        parsed, _ = parse_options(own, options)
        requests += [_Request(prompt, parsed, sample, hook or Hooks()) for sample in range(n)]
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
    """Answers that are generated together; iterate to get ``(index, step)`` as they come."""

    def __init__(
        self,
        scheduler: Scheduler,
        model: Model,
        tokenizer: TokenizerWrapper,
        requests: Sequence[_Request],
        batch: int,
        on_progress: OnProgress | None,
    ) -> None:
        """Prepare all answers; see `batch_generate`."""
        self._model = model
        self._tokenizer = tokenizer
        self._on_progress = on_progress
        self._scheduler = scheduler
        self._policies: list[tuple[Settings, str | Path | Profile, Policy]] = []
        self._prompts: dict[tuple[int, ...], Prompt] = {}
        self._rows: dict[Row, BatchAnswer] = {}
        self.answers: list[BatchAnswer] = []
        """In the order of the prompts, each as far as it has come."""
        jobs = [self._prepare(request) for request in requests]
        self._jobs = deque(job for job in jobs if job is not None)
        self._left = Counter(tuple(job.prompt) for _, job in self._jobs)
        lengths = [_longest(job) for _, job in self._jobs]
        self.size = fitting_rows(model, lengths, min(batch, len(lengths)))
        """Answers that are run at once."""

    def finish(self) -> list[BatchAnswer]:
        """Run what is left to its end, and return all answers in order."""
        for _ in self:
            pass
        return self.answers

    def __iter__(self) -> Iterator[tuple[int, Step]]:
        """Yield each step with the index of its answer, as they are committed."""
        chooser = ThreadPoolExecutor(1, "choose")
        asking: dict[Row, Future[int]] = {}
        with wired_memory.raised():
            try:
                while self._jobs or self._rows:
                    self._admit()
                    for row, step in self._scheduler.advance():
                        answer = self._rows[row]
                        answer.steps.append(step)
                        yield answer.index, step
                    self._ask(chooser, asking)
                    self._retire()
            finally:
                self._scheduler.close()
                chooser.shutdown(wait=False, cancel_futures=True)

    def _prepare(self, request: _Request) -> tuple[BatchAnswer, Job] | None:
        """Return the answer and job of a request; None where it cannot be used."""
        answer = BatchAnswer(len(self.answers), 0, None)
        self.answers.append(answer)
        try:
            tokens = prompt_tokens(self._tokenizer, request.prompt)
            answer.prompt_tokens = len(tokens)
            seed = request.settings.seed
            own = seed if seed is None else seed + request.sample
            settings, policy = self._resolve(replace(request.settings, seed=own))
            answer.seed = settings.seed
            job = Job.of_settings(tokens, settings, policy, hooks=request.hooks)
            # Whatever is wrong with the prompt or the thinking text is found before any pass.
            begin(self._model, self._tokenizer, job, prepare(self._model, self._nothing(), job))
        except EntropixError as error:
            answer.error = error
            return None
        return answer, job

    def _nothing(self) -> Text:
        return Text.empty(self._model)

    def _resolve(self, settings: Settings) -> tuple[Settings, Policy]:
        """Return settings with their profile and a seed, and their policy.

        A profile takes milliseconds to read, and rows are measured together where they share a
        policy. So both are made once for all settings that differ in nothing that a policy reads.
        """
        alike = replace(
            settings, seed=0, max_tokens=0, attention_layers="last", top_logprobs=0, stop=()
        )
        known = next((known for known in self._policies if known[0] == alike), None)
        if known is None:
            resolved = alike.resolved(self._model.config)
            known = alike, resolved.profile, resolved.policy()
            self._policies.append(known)
        _, profile, policy = known
        own = replace(settings, profile=profile, changes={})
        return own.resolved(self._model.config), policy

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

    def _ask(self, chooser: ThreadPoolExecutor, asking: dict[Row, Future[int]]) -> None:
        """Have people asked, and go on with what they chose."""
        for row in self._rows:
            if row.asked is not None and row not in asking and row.choose is not None:
                asking[row] = chooser.submit(row.choose, row.asked)
        only = len(asking) == len(self._rows)
        for row, future in list(asking.items()):
            if not (only or future.done()):
                continue
            del asking[row]
            only = False
            try:
                row.reply(future.result())
            except Exception as error:
                row.end(error)

    def _retire(self) -> None:
        """Take leave of the answers that have ended."""
        running = set(self._scheduler.rows)
        for row in [row for row in self._rows if row not in running]:
            self._rows.pop(row).error = row.error
            self._tell()

    def _tell(self) -> None:
        if self._on_progress is not None:
            waiting = len(self._jobs) + len(self._rows)
            self._on_progress(len(self.answers) - waiting, len(self.answers))


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
