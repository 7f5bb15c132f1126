"""The report of an evaluation: accuracy, contrasts between arms, how well scores separate.

Everything is paired by question: all arms answer the same questions with the same random numbers.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from itertools import combinations
from statistics import fmean
from typing import Any, NamedTuple

from ..errors import OutputError
from ..tables import Table
from .abstention import grades, known, values_of
from .evaluate import AnswerRecord
from .statistics import (
    Auroc,
    Interval,
    auroc,
    auroc_within,
    bootstrap_mean,
    sign_test,
    wilson,
)

ALL_LEVELS = "all"


class Accuracy(NamedTuple):
    """The answers of one arm to the questions of one level, or to all of them."""

    arm: str
    level: str
    n: int
    right: int
    accuracy: float
    interval: Interval  # Wilson's: too narrow where several seeds answer the same question
    committed: int
    discarded: int  # tokens that went through the model and did not become part of an answer
    tokens_per_right_answer: float  # of both; NaN without any


class Contrast(NamedTuple):
    """Two arms on the questions that both have answered."""

    first: str
    second: str
    questions: int
    wins: int  # questions that the first arm answers right more often
    losses: int
    difference: float
    interval: Interval  # bootstrap over questions
    p_value: float  # sign test over questions, not corrected for there being several contrasts


class Separation(NamedTuple):
    """How well one score separates an arm's right answers from its wrong ones."""

    arm: str
    score: str
    n: int
    auroc: Auroc
    within: float  # of pairs within a level: pooled, it mostly separates easy levels from hard ones


@dataclass(frozen=True)
class EvaluationReport:
    """A summary of a run's answers."""

    model: str
    form: str
    questions: int
    accuracies: tuple[Accuracy, ...]
    contrasts: tuple[Contrast, ...]
    separations: tuple[Separation, ...]

    @classmethod
    def of(cls, records: Sequence[AnswerRecord], *, confidence: bool = False) -> EvaluationReport:
        """Summarize at least one answer; arms in the order of their first answers."""
        if not records:
            raise OutputError("there are no answers to summarize")
        arms: dict[str, list[AnswerRecord]] = defaultdict(list)
        for record in records:
            arms[record.arm].append(record)
        shares = {arm: _shares(answers) for arm, answers in arms.items()}
        return cls(
            model=", ".join(sorted({record.model for record in records})),
            form=", ".join(sorted({record.form for record in records})),
            questions=len({record.question for record in records}),
            accuracies=tuple(one for arm in arms for one in _by_level(arm, arms[arm])),
            contrasts=tuple(_contrast(b, a, shares) for a, b in combinations(shares, 2)),
            separations=tuple(
                _separation(arm, name, answers)
                for arm, every in arms.items()
                if confidence and (answers := [one for one in every if one.tokens.logprob])
                for name in known(answers)
            ),
        )

    def tables(self) -> list[Table]:
        return [
            _accuracy_table(self.accuracies),
            *([_contrast_table(self.contrasts)] if self.contrasts else []),
            *(
                _separation_table(arm, [one for one in self.separations if one.arm == arm])
                for arm in dict.fromkeys(one.arm for one in self.separations)
            ),
        ]

    def to_dict(self) -> dict[str, Any]:
        return {field.name: _jsonable(getattr(self, field.name)) for field in fields(self)}


def _by_level(arm: str, answers: Sequence[AnswerRecord]) -> list[Accuracy]:
    levels: dict[str, list[AnswerRecord]] = defaultdict(list)
    for answer in answers:
        levels[answer.level].append(answer)
    every = {ALL_LEVELS: answers} if len(levels) > 1 else {}
    return [_accuracy(arm, level, group) for level, group in {**every, **levels}.items()]


def _accuracy(arm: str, level: str, answers: Sequence[AnswerRecord]) -> Accuracy:
    n, right = len(answers), sum(answer.right for answer in answers)
    committed = sum(answer.committed for answer in answers)
    discarded = sum(answer.discarded for answer in answers)
    price = (committed + discarded) / right if right else math.nan
    interval = wilson(right, n)
    return Accuracy(arm, level, n, right, right / n, interval, committed, discarded, price)


def _shares(answers: Sequence[AnswerRecord]) -> dict[str, float]:
    """Return the share of right answers to each question."""
    found: dict[str, list[bool]] = defaultdict(list)
    for answer in answers:
        found[answer.question].append(answer.right)
    return {question: fmean(each) for question, each in found.items()}


def _contrast(first: str, second: str, shares: dict[str, dict[str, float]]) -> Contrast:
    one, other = shares[first], shares[second]
    differences = [one[question] - other[question] for question in one if question in other]
    wins = sum(difference > 0 for difference in differences)
    losses = sum(difference < 0 for difference in differences)
    mean = fmean(differences) if differences else math.nan
    interval, p_value = bootstrap_mean(differences), sign_test(wins, losses)
    return Contrast(first, second, len(differences), wins, losses, mean, interval, p_value)


def _separation(arm: str, score: str, records: Sequence[AnswerRecord]) -> Separation:
    values, right = values_of(records, score), grades(records)
    within = auroc_within(values, right, [record.level for record in records])
    return Separation(arm, score, len(records), auroc(values, right), within)


def percent(share: float) -> str:
    return "–" if math.isnan(share) else f"{100 * share:.1f} %"


def interval(
    bounds: Interval, form: Callable[[float], str] = lambda value: f"{100 * value:.1f}"
) -> str:
    return "–" if math.isnan(bounds.low) else f"{form(bounds.low)} … {form(bounds.high)}"


def _accuracy_table(accuracies: Sequence[Accuracy]) -> Table:
    header = ("arm", "questions", "n", "right", "accuracy", "95 % (Wilson)", "committed",
              "discarded", "tokens a right answer")  # fmt: skip
    rows = [
        (
            each.arm,
            each.level,
            str(each.n),
            str(each.right),
            percent(each.accuracy),
            interval(each.interval),
            str(each.committed),
            str(each.discarded),
            f"{each.tokens_per_right_answer:.1f}" if each.right else "–",
        )
        for each in accuracies
    ]
    return Table(header, rows, "Accuracy")


def _contrast_table(contrasts: Sequence[Contrast]) -> Table:
    header = ("first − second", "questions", "wins", "losses", "points", "95 % (bootstrap)",
              "p (sign test)")  # fmt: skip
    rows = [
        (
            f"{each.first} − {each.second}",
            str(each.questions),
            str(each.wins),
            str(each.losses),
            f"{100 * each.difference:+.1f}",
            interval(each.interval, lambda value: f"{100 * value:+.1f}"),
            "< 0.0001" if each.p_value < 0.0001 else f"{each.p_value:.4f}",
        )
        for each in contrasts
    ]
    return Table(header, rows, "Contrasts, paired by question")


def _separation_table(arm: str, found: Sequence[Separation]) -> Table:
    header = ("score", "AUROC", "95 % (bootstrap)", "within a level")
    rows = [
        (
            each.score,
            _decimals(each.auroc.value),
            interval(each.auroc.interval, _decimals),
            _decimals(each.within),
        )
        for each in found
    ]
    return Table(header, rows, f"Does it know when it is wrong? {arm}, {found[0].n} answers")


def _decimals(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3f}"


def _jsonable(value: Any) -> Any:
    """Return records as JSON has them, with null for NaN."""
    if isinstance(value, float):
        return None if math.isnan(value) else value
    if hasattr(value, "_asdict"):
        return {key: _jsonable(item) for key, item in value._asdict().items()}
    return [_jsonable(item) for item in value] if isinstance(value, tuple) else value
