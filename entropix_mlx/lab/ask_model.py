"""Asking a model many prompts at once, keeping every answer, and telling how far it has come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..api.prompts import conversation_prompt
from ..models.base import LanguageModel
from ..samplers.base import Sampler
from ..settings import ResolvedSettings, Settings
from ..step import Step
from .calibration.journal import Journal
from .together import Task, answer_all

OnProgress = Callable[[int, int], None]
"""Called with what is done so far, and with how much there is to do as far as it is known."""


@dataclass
class Progress:
    """Where a long measurement keeps what it found, and whom it tells how far it has come."""

    path: Path | None = None
    """The file of findings, by which a run that was stopped goes on; None for none."""
    resume: bool = False
    """Whether to go on with the file, if there is one."""
    tell: OnProgress = lambda done, total: None
    journal: Journal = field(default_factory=Journal)
    done: int = 0
    total: int = 0

    def begin(self, subject: Any) -> None:
        """Open the file for what is measured.

        Raises:
            OutputError: it cannot be used.
        """
        if self.path is not None:
            self.journal = Journal(self.path, subject, resume=self.resume)

    def expect(self, more: int) -> None:
        """Tell that so much more is to be done; less, if negative."""
        self.total += more
        self.tell(self.done, self.total)

    def advance(self, by: int = 1) -> None:
        """Tell that so much was done."""
        self.done += by
        self.total = max(self.total, self.done)
        self.tell(self.done, self.total)


@dataclass(frozen=True)
class Answered:
    """An answer to one prompt."""

    prompt: list[int]
    """Tokens, with those of the chat template."""
    seed: int
    steps: list[Step]
    asked: str
    """The question of the user."""

    def going_on(self, place: int, sampler: Sampler, tokens: int, seed: int | None = None) -> Task:
        """Return the task of going on from a place of the answer, perhaps otherwise than it does.

        Args:
            place: the number of the first step that is not kept.
            sampler: how to go on.
            tokens: the most that may follow.
            seed: another one than the answer's.
        """
        kept = self.steps[:place]
        seed = self.seed if seed is None else seed
        settings = ResolvedSettings(Settings(max_tokens=tokens, speculation="off"), sampler, seed)
        return Task([*self.prompt, *(step.token for step in kept)], settings, kept)


@dataclass
class Asker:
    """Asks a model many prompts at once; what the journal holds is not asked again."""

    model: LanguageModel
    tokenizer: TokenizerWrapper
    seed: int
    """Of the first answer to a list of prompts; the others count on."""
    progress: Progress

    def answers(
        self, stage: str, prompts: Sequence[str], tokens: int, *, first: int = 0, **options: Any
    ) -> list[Answered]:
        """Return the answers to some prompts.

        Args:
            stage: what the journal calls them.
            prompts: questions of a user.
            tokens: the most of an answer.
            first: how many seeds were used before.
            **options: of `Settings`.
        """
        settings = Settings(
            max_tokens=tokens, seed=self.seed + first, top_logprobs=1, speculation="off", **options
        ).resolved(self.model.config)
        jobs = []
        for number, prompt in enumerate(prompts):
            asked = conversation_prompt(self.tokenizer, [{"role": "user", "content": prompt}])
            jobs.append(Task(asked, settings.with_seed(self.seed + first + number)))
        return [
            Answered(list(job.prompt), job.settings.seed, steps, prompt)
            for job, steps, prompt in zip(jobs, self.run(stage, jobs), prompts, strict=True)
        ]

    def run(self, stage: str, jobs: Sequence[Task]) -> list[list[Step]]:
        """Return the steps of some answers.

        Args:
            stage: what the journal calls them.
            jobs: the answers, each with a limit of tokens.
        """
        journal = self.progress.journal
        known = {number: journal.get(stage, number) for number in range(len(jobs))}
        steps = {
            number: [Step.from_dict(record) for record in found]
            for number, found in known.items()
            if found is not None
        }
        self.progress.advance(len(steps))
        missing = [number for number in range(len(jobs)) if number not in steps]

        def keep(place: int, taken: list[Step]) -> None:
            number = missing[place]
            steps[number] = taken
            journal.add(stage, number, [step.to_dict() for step in taken])
            self.progress.advance()

        answer_all(self.model, self.tokenizer, [jobs[number] for number in missing], keep)
        return [steps[number] for number in range(len(jobs))]
