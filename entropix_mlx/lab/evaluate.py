"""Evaluations: arms answer the same questions, and each answer becomes a line of a file.

A line is that of `entropix generate --output` with the question, the grade, the cost of the answer,
and the metrics of its tokens. All reports are computed from these lines alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import limits
from ..api.answers_file import Task, check_count, records
from ..api.prompt_file import PromptLine
from ..errors import PromptError
from ..profiles.confidence import SCORED, AnswerMetrics
from ..profiles.sections import MOST_FORKS, UNFORKED_DRAW
from ..records import from_record
from ..samplers.registry import SAMPLERS
from ..settings import BATCH, Settings
from ..step import Origin
from ..summary import forward_tokens
from . import grading
from .questions import Problem

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ..api.batch import BatchAnswer
    from ..models.base import LanguageModel

CHAT, PLAIN = "chat", "plain"
FORMS = (CHAT, PLAIN)
STOP = "\n"
"""The end of an answer, which is one line."""
TOGETHER = 512
"""Answers that are prepared at once: each takes a millisecond, and a run may have thousands."""
DIGITS = 6
"""Significant ones of a measurement in the file."""


# Arms: the settings that are compared.

_COLD: dict[str, dict[str, Any]] = {"think": {"max_insertions": 0}, "branch": {"max_branches": 0}}


def _cold_but(**changes: dict[str, Any]) -> dict[str, Any]:
    return {"changes": {name: table | changes.get(name, {}) for name, table in _COLD.items()}}


ARMS: dict[str, dict[str, Any]] = {
    "cold": _cold_but(),
    "forks": _cold_but(branch={"max_branches": MOST_FORKS}),
    "hot": _cold_but(branch={"unforked": UNFORKED_DRAW}),
    "thoughts": _cold_but(think={"max_insertions": 3}),
    "several": {"answers": 8},
    "reference": {"profile": "reference"},
}
"""By name, the fields of `Settings` by which an arm differs from the entropix sampler. `cold` has
no intervention, and the most probable token where a fork could be: the control of `forks`, `hot`
(which draws there at a high temperature) and `thoughts`. `reference` has the published thresholds.
"""


@dataclass(frozen=True)
class Arm:
    """Settings under a name."""

    name: str
    settings: Settings
    """Without a seed: that depends on the question, and is the same for all arms."""


def arms_of(
    names: Sequence[str], temperatures: Sequence[float | None], base: Settings
) -> list[Arm]:
    """Return an arm for every name, a key of `ARMS` or a sampler, and every temperature.

    An arm whose sampler takes no temperature, such as greedy, is there once.

    Raises:
        EntropixError: there is no such arm, or its settings cannot be used.
    """
    arms = []
    for name in dict.fromkeys(names):
        if name not in ARMS and name not in SAMPLERS:
            raise PromptError(f"no arm {name!r}: use one of {', '.join((*ARMS, *SAMPLERS))}")
        changed = ARMS.get(name, {"sampler": name})
        settings = replace(base, **changed)
        takes = "temperature" in SAMPLERS[settings.sampler].takes
        for temperature in dict.fromkeys(temperatures) if takes else (None,):
            arm = replace(settings, temperature=temperature)
            arm.check()
            arms.append(Arm(name if temperature is None else f"{name} T={temperature:g}", arm))
    return arms


# Planned answers.


@dataclass(frozen=True)
class PlannedAnswer(Task):
    """One answer that is to be generated: a question, an arm, and a seed."""

    question: Problem
    arm: str
    seed_number: int
    form: str
    model: str

    @property
    def settings(self) -> Settings:
        """Those of the prompt, which has the seed of this answer already."""
        return self.prompt.settings

    @property
    def header(self) -> dict[str, Any]:
        """What a line says before the answer is known; a run that is resumed checks it."""
        question = self.question
        return super().header | {
            "question": question.id,
            "task": question.task,
            "level": question.level_name,
            "rule": question.rule,
            "answers": list(question.answers),
            "arm": self.arm,
            "seed_number": self.seed_number,
            "form": self.form,
            "model": self.model,
        }

    def record(self, answer: BatchAnswer, batch: int) -> dict[str, Any]:
        record = super().record(answer, batch)
        if answer.error is not None:
            return record
        text = "".join(step.text for step in answer.steps if step.origin is not Origin.RETRIEVED)
        committed, discarded = forward_tokens(answer.steps)
        if answer.several is not None:
            discarded = answer.several.forward_tokens - committed
        tokens = AnswerMetrics.of(answer.steps)
        rounded = {
            name: [float(f"{value:.{DIGITS}g}") for value in getattr(tokens, name)]
            for name in SCORED
        }
        return record | {
            "right": grading.is_right(self.question.rule, text, self.question.answers),
            "committed": committed,
            "discarded": discarded,
            "tokens": rounded,
        }


def plan(
    problems: Sequence[Problem],
    arms: Sequence[Arm],
    model: str,
    form: str = PLAIN,
    seed: int = 0,
    seeds: int = 1,
) -> list[PlannedAnswer]:
    """Return all answers of a run by question, then by arm, then by seed, counted from `seed`.

    Raises:
        PromptError: they are too many.
    """
    check_count(len(problems) * len(arms) * seeds, limits.GRADED)
    planned = []
    for line, problem in enumerate(problems, 1):
        for sample, (arm, number) in enumerate(product(arms, range(seeds))):
            own = seed_of(problem, seed + number)
            settings = replace(arm.settings, seed=own, stop=(*arm.settings.stop, STOP))
            prompt = prompt_of(problem, form, line, settings)
            planned.append(PlannedAnswer(prompt, sample, problem, arm.name, number, form, model))
    return planned


def seed_of(problem: Problem, seed: int) -> int:
    """Return the seed of an answer: all arms share it, and no two questions do.

    A draw depends on the seed and the position only. With one seed for all questions, the answers
    to all of them would be drawn with the same random numbers.
    """
    return int.from_bytes(hashlib.sha256(f"{seed}/{problem.id}".encode()).digest()[:4], "big")


def prompt_of(problem: Problem, form: str, line: int, settings: Settings) -> PromptLine:
    """Return the prompt of a question: worked examples as earlier turns, or a text to continue."""
    if form == CHAT:
        messages = [
            {"role": role, "content": text}
            for example in problem.examples
            for role, text in zip(("user", "assistant"), example, strict=True)
        ]
        messages.append({"role": "user", "content": problem.text})
        return PromptLine(line, settings, messages=tuple(messages), id=problem.id)
    shown = [f"Question: {text}\nAnswer: {answer}\n\n" for text, answer in problem.examples]
    prompt = "".join(shown) + f"Question: {problem.text}\nAnswer:"
    return PromptLine(line, settings, prompt=prompt, id=problem.id)


def answers(
    model: LanguageModel,
    tokenizer: TokenizerWrapper,
    planned: Sequence[PlannedAnswer],
    *,
    batch: int = BATCH,
    on_token: Callable[[], None] = lambda: None,
) -> Iterator[tuple[PlannedAnswer, dict[str, Any]]]:
    """Generate answers, and yield each with its record as it ends."""
    from ..api.batch import batch_generate

    for first in range(0, len(planned), TOGETHER):
        part = planned[first : first + TOGETHER]
        prompts = [one.prompt.tokens(tokenizer, bare=one.form == PLAIN) for one in part]
        settings = [one.settings for one in part]
        running = batch_generate(model, tokenizer, prompts, settings, batch=batch)
        yield from records(running, part, on_token)


# Records of answers, read again.


@dataclass(frozen=True)
class AnswerRecord:
    """One answer of a file, and what it cost in tokens that went through the model."""

    question: str
    """The id of the question."""
    task: str
    level: str
    arm: str
    form: str
    right: bool
    committed: int
    """Tokens of the answer, its end included."""
    discarded: int
    """Draws that were taken back, and tokens of branches and answers that were not chosen."""
    tokens: AnswerMetrics = field(default_factory=AnswerMetrics)
    seed: int = 0
    model: str = ""


def parse_record(line: dict[str, Any]) -> AnswerRecord:
    """Return the answer of a line, as JSON has it.

    Raises:
        ValueError: a field is missing or has another type.
    """
    found = from_record(AnswerRecord, line)
    lengths = {len(getattr(found.tokens, name)) for name in SCORED}
    if len(lengths) > 1:
        raise ValueError("tokens must have as many of each measurement")
    return found


def read_records(path: str | Path) -> list[AnswerRecord]:
    """Return the answers of a file; lines about answers that failed are left out.

    Raises:
        PromptError: the file cannot be read, or a line of it is no answer of an evaluation.
    """
    found = []
    for number, line in limits.read_lines(path, limits.ANSWERS_BYTES, PromptError):
        try:
            record = json.loads(line.decode("utf-8"))
            if "error" not in record:
                found.append(parse_record(record))
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise PromptError(
                f"{path}, line {number} is no answer of an evaluation: {error}"
            ) from error
    return found
