"""Answering: every question by every arm with every seed, in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from ...answer.hooks import Hooks
from ...settings import BATCH
from . import open_answers
from .arms import PLAIN, STOP, Arm, asked, seed_of
from .questions import Question
from .records import Planned

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ...api.batch import Batch
    from ...models.base import LanguageModel
    from ...notes.notes import Notes

TOGETHER = 512
"""Answers that are prepared at once: each takes a millisecond, and a run may have thousands."""

OnToken = Callable[[], None]


@dataclass(frozen=True)
class Design:
    """What is the same for all answers of a run."""

    model: str
    """The model's name."""
    form: str = PLAIN
    """One of `arms.FORMS`."""
    seed: int = 0
    """The first seed."""
    seeds: int = 1
    """Answers of each arm to each question."""


def plan(questions: Sequence[Question], arms: Sequence[Arm], design: Design) -> list[Planned]:
    """Return all answers of a run, those to one question one after the other.

    Args:
        questions: what is asked.
        arms: how it is answered.
        design: what is the same for all.
    """
    planned = []
    for line, question in enumerate(questions, 1):
        for place, arm in enumerate(arms):
            for number in range(design.seeds):
                settings = replace(arm.settings, seed=seed_of(question, design.seed + number))
                if question.rule != open_answers.RULE:
                    settings = replace(settings, stop=(*settings.stop, STOP))
                planned.append(
                    Planned(
                        asked=asked(question, design.form, line, settings),
                        sample=place * design.seeds + number,
                        question=question,
                        arm=arm.name,
                        seed_number=number,
                        form=design.form,
                        model=design.model,
                    )
                )
    return planned


def answers(
    model: LanguageModel,
    tokenizer: TokenizerWrapper,
    planned: Sequence[Planned],
    *,
    batch: int = BATCH,
    on_token: OnToken = lambda: None,
    notes: Notes | None = None,
) -> Iterator[tuple[Planned, dict[str, Any]]]:
    """Generate answers, and yield each with its record as it ends.

    Args:
        model: from `load`.
        tokenizer: from `load`.
        planned: from `plan`.
        batch: answers at once.
        on_token: called with every token.
        notes: where things may be looked up.
    """
    from ...api.batch import batch_generate

    begin = partial(batch_generate, model, tokenizer, batch=batch, steady=True)
    waiting = iter(planned)
    while together := list(islice(waiting, TOGETHER)):
        yield from _together(begin, tokenizer, together, on_token, notes)


def _together(
    begin: Callable[..., Batch],
    tokenizer: TokenizerWrapper,
    planned: Sequence[Planned],
    on_token: OnToken,
    notes: Notes | None,
) -> Iterator[tuple[Planned, dict[str, Any]]]:
    prompts: dict[int, list[int]] = {}
    for task in planned:
        if task.asked.line not in prompts:
            prompts[task.asked.line] = task.asked.tokens(tokenizer, bare=task.form == PLAIN)
    settings = [task.settings for task in planned]
    hooks = [Hooks(retrieve=notes.about(task.question.text)) for task in planned] if notes else None
    batch = begin([prompts[task.asked.line] for task in planned], settings, hooks=hooks)
    ended: set[int] = set()

    def end(index: int) -> tuple[Planned, dict[str, Any]]:
        answer, task = batch.answers[index], planned[index]
        record = task.record(answer, batch.size)
        ended.add(index)
        answer.steps.clear()
        return task, record

    for index, step in batch:
        on_token()
        if step.finish_reason:
            yield end(index)
    for index in range(len(planned)):
        if index not in ended:  # it failed
            yield end(index)
