"""Asking a model many prompts at once, keeping every answer, and telling how far it has come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..decoding.batch import batch_generate
from ..decoding.prompts import conversation_prompt
from ..models.base import LanguageModel
from ..settings import Settings
from ..step import Step
from .journal import Journal

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
        """Tell that so much more is to be done."""
        self.total += more
        self.tell(self.done, self.total)

    def advance(self, by: int = 1) -> None:
        """Tell that so much was done."""
        self.done += by
        self.tell(self.done, self.total)


@dataclass(frozen=True)
class Answered:
    """An answer to one prompt."""

    prompt: list[int]
    """Tokens, with those of the chat template."""
    seed: int
    steps: list[Step]


@dataclass
class Asker:
    """Asks a model many prompts at once; what the journal holds is not asked again."""

    model: LanguageModel
    tokenizer: TokenizerWrapper
    seed: int
    """Of the first answer to a list of prompts; the others count on."""
    progress: Progress

    def answers(
        self, stage: str, prompts: Sequence[str], tokens: int, **options: Any
    ) -> list[Answered]:
        """Return the answers to some prompts.

        Args:
            stage: what the journal calls them.
            prompts: questions of a user.
            tokens: the most of an answer.
            **options: of `Settings`.
        """
        asked = [
            conversation_prompt(self.tokenizer, [{"role": "user", "content": prompt}])
            for prompt in prompts
        ]
        journal = self.progress.journal
        known = {n: found for n in range(len(asked)) if (found := journal.get(stage, n))}
        steps = {n: [Step.from_dict(record) for record in found] for n, found in known.items()}
        self.progress.advance(len(steps))
        settings = Settings(max_tokens=tokens, top_logprobs=1, lookup="off", **options)
        missing = [number for number in range(len(asked)) if number not in steps]
        batch = batch_generate(
            self.model,
            self.tokenizer,
            [asked[number] for number in missing],
            [replace(settings, seed=self.seed + number) for number in missing],
            steady=True,
        )
        for place, step in batch:
            if step.finish_reason is not None:
                number = missing[place]
                steps[number] = batch.answers[place].steps
                journal.add(stage, number, [one.to_dict() for one in steps[number]])
                self.progress.advance()
        for answer in batch.answers:
            if answer.error is not None:
                raise answer.error
        return [Answered(asked[n], self.seed + n, steps[n]) for n in range(len(asked))]
