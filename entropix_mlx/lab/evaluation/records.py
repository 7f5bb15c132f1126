"""Records of answers: lines of the answers' file, written and read again.

A line is that of `entropix generate --output` with the question, the grade, the cost of the answer,
and the metrics of its tokens. All reports are computed from these lines alone.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ... import limits
from ...api.answers_file import Task
from ...errors import PromptError
from ...profiles.confidence import OPTIONAL, SCORED, AnswerMetrics
from ...records import from_record
from ...settings import Settings
from ...step import Origin
from ...summary import forward_tokens
from . import grading
from .questions import Problem

if TYPE_CHECKING:
    from ...api.batch import BatchAnswer

_DIGITS = 6
"""Significant ones of a measurement in the file."""


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
        named = ("id", "task", "level", "split", "rule")
        question = {name: getattr(self.question, name) for name in named} | {
            "answers": list(self.question.answers),
            "arm": self.arm,
            "seed_number": self.seed_number,
            "form": self.form,
        }
        return super().header | {"model": self.model, "question": question}

    def record(self, answer: BatchAnswer, batch: int) -> dict[str, Any]:
        own = [step.text for step in answer.steps if step.origin is not Origin.RETRIEVED]
        right = False
        try:
            right = grading.is_right(self.question.rule, "".join(own), self.question.answers)
        except PromptError as error:
            answer.error = error
        record = super().record(answer, batch)
        if answer.error is not None:
            return record
        committed, discarded = forward_tokens(answer.steps)
        if answer.several is not None:
            discarded = answer.several.forward_tokens - committed
        graded = {
            "right": right,
            "committed": committed,
            "discarded": discarded,
            "retrieved": len(answer.steps) - len(own),
        }
        tokens = AnswerMetrics.of(answer.steps)
        rounded: dict[str, Any] = {
            name: [float(f"{value:.{_DIGITS}g}") for value in getattr(tokens, name)]
            for name in (*SCORED, *OPTIONAL)
            if name in SCORED or getattr(tokens, name)
        }
        if answer.previous_attention:
            rounded["previous_attention"] = [
                [float(f"{value:.{_DIGITS}g}") for value in layer]
                for layer in answer.previous_attention
            ]
        return record | {"graded": graded, "tokens": rounded | {"first": tokens.first}}


@dataclass(frozen=True)
class RecordedQuestion:
    """The question of a line."""

    id: str
    task: str
    level: str
    split: str
    rule: str
    arm: str
    seed_number: int
    form: str
    answers: tuple[str, ...]


@dataclass(frozen=True)
class Graded:
    """The grade of a line, and what the answer cost in tokens that went through the model."""

    right: bool
    committed: int
    """Tokens of the answer, its end included."""
    discarded: int
    """Draws that were taken back, and tokens of branches that did not become the text."""
    retrieved: int = 0
    """Committed tokens of retrieved passages; what they say is not graded."""


@dataclass(frozen=True)
class AnswerRecord:
    """One answer of a file."""

    question: RecordedQuestion
    graded: Graded
    text: str
    tokens: AnswerMetrics = field(default_factory=AnswerMetrics)
    seed: int = 0
    model: str = ""


def parse_record(line: dict[str, Any]) -> AnswerRecord:
    """Return the answer of a line, as JSON has it.

    Raises:
        ValueError: a field is missing or has another type.
        PromptError: its rule cannot grade it.
    """
    found = from_record(AnswerRecord, line)
    grading.check_rule(found.question.rule, found.question.answers)
    lengths = {len(getattr(found.tokens, name)) for name in SCORED}
    lengths |= {len(values) for name in OPTIONAL if (values := getattr(found.tokens, name))}
    lengths |= {len(layer) + 1 for layer in found.tokens.previous_attention}
    if len(lengths) > 1 or not 0 <= found.tokens.first <= max(lengths):
        raise ValueError("tokens must have as many of each measurement, and first must be of one")
    return found


def read_records(path: str | Path) -> list[AnswerRecord]:
    """Return the answers of a file; lines about answers that failed are left out.

    Raises:
        PromptError: the file cannot be read, or a line of it is no answer of an evaluation.
    """
    records = []
    for number, line in limits.read_lines(path, limits.ANSWERS_BYTES, PromptError):
        try:
            record = json.loads(line.decode("utf-8"))
            if "error" not in record:
                records.append(parse_record(record))
        except (ValueError, TypeError, AttributeError, RecursionError, PromptError) as error:
            raise PromptError(
                f"{path}, line {number} is no answer of an evaluation: {error}"
            ) from error
    return records
