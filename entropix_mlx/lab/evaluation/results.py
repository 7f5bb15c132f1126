"""What the answers of a run amount to: accuracy, cost, and contrasts between arms.

Everything is paired by question: all arms answer the same questions with the same random numbers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from ...errors import PromptError
from ...profiles.fields import hint
from .records import Record
from .statistics import Interval, bootstrap_mean, holm, sign_test, wilson

ALL_RUNGS = "all"


@dataclass(frozen=True)
class Accuracy:
    """The answers of one arm to the questions of one rung, or to all of them."""

    arm: str
    rung: str
    n: int
    right: int
    interval: Interval
    """Wilson's, at 95 %. With several seeds the answers to a question are not independent: it is
    then too narrow, and the contrasts are what counts."""
    committed: int
    """Tokens of the answers."""
    discarded: int
    """Tokens that went through the model and did not become part of an answer."""

    @property
    def accuracy(self) -> float:
        """The share of right answers."""
        return self.right / self.n if self.n else 0.0

    @property
    def tokens_per_right_answer(self) -> float | None:
        """Generated tokens, discarded ones included, for each right answer; None without any."""
        return (self.committed + self.discarded) / self.right if self.right else None


@dataclass(frozen=True)
class Contrast:
    """Two arms on the questions that both have answered."""

    first: str
    second: str
    questions: int
    wins: int
    """Questions that the first arm has right more often than the second."""
    losses: int
    difference: float
    """Accuracy of the first arm minus that of the second."""
    interval: Interval
    """Bootstrap over questions, at 95 %."""
    p_value: float
    """Sign test over questions; with one seed, McNemar's exact test."""
    adjusted: float
    """The p-value after Holm, over all contrasts that are reported."""


@dataclass(frozen=True)
class Results:
    """A run, summed up."""

    accuracies: tuple[Accuracy, ...]
    contrasts: tuple[Contrast, ...]


Pair = tuple[str, str]
"""The names of two arms, of which the first is compared with the second."""


def summarize(records: Sequence[Record], pairs: Sequence[Pair] = ()) -> Results:
    """Return what answers amount to; arms and rungs come in the order of their first answers.

    Args:
        records: the answers.
        pairs: the arms to compare; () for every two.

    Raises:
        PromptError: an arm that is to be compared has no answers.
    """
    by_arm: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        by_arm[record.question.arm].append(record)
    accuracies = [
        accuracy for arm, answers in by_arm.items() for accuracy in _accuracies(arm, answers)
    ]
    return Results(tuple(accuracies), tuple(contrasts(by_arm, pairs)))


def rung_name(record: Record) -> str:
    """Return the task and rung of an answer."""
    question = record.question
    return question.rung if question.rung == question.task else f"{question.task}/{question.rung}"


def _accuracies(arm: str, answers: Sequence[Record]) -> list[Accuracy]:
    rungs: dict[str, list[Record]] = defaultdict(list)
    for answer in answers:
        rungs[rung_name(answer)].append(answer)
    every = {ALL_RUNGS: answers} if len(rungs) > 1 else {}
    return [_accuracy(arm, rung, group) for rung, group in {**every, **rungs}.items()]


def _accuracy(arm: str, rung: str, answers: Sequence[Record]) -> Accuracy:
    right = sum(answer.graded.right for answer in answers)
    return Accuracy(
        arm,
        rung,
        len(answers),
        right,
        wilson(right, len(answers)),
        sum(answer.graded.committed for answer in answers),
        sum(answer.graded.discarded for answer in answers),
    )


def check_pairs(pairs: Sequence[Pair], known: Collection[str]) -> None:
    """Check that the arms to compare are there.

    Raises:
        PromptError: one is not.
    """
    for name in (name for pair in pairs for name in pair):
        if name not in known:
            raise PromptError(f"no arm {name!r} to compare; {hint(name, known)}")


def contrasts(by_arm: dict[str, list[Record]], pairs: Sequence[Pair] = ()) -> list[Contrast]:
    """Return contrasts of arms, with p-values that are adjusted for their number.

    Args:
        by_arm: the answers of each.
        pairs: as for `summarize`.
    """
    shares = {arm: _share_right(answers) for arm, answers in by_arm.items()}
    check_pairs(pairs, shares)
    every = [(first, second) for second, first in combinations(shares, 2)]
    found = [
        _contrast(first, second, shares[first], shares[second]) for first, second in pairs or every
    ]
    adjusted = holm([one["p_value"] for one in found])
    return [Contrast(**one, adjusted=p) for one, p in zip(found, adjusted, strict=True)]


def _share_right(answers: Iterable[Record]) -> dict[str, float]:
    """Return the share of an arm's answers to each question that is right."""
    graded: dict[str, list[bool]] = defaultdict(list)
    for answer in answers:
        graded[answer.question.id].append(answer.graded.right)
    return {question: sum(each) / len(each) for question, each in graded.items()}


def _contrast(
    first: str, second: str, one: dict[str, float], other: dict[str, float]
) -> dict[str, Any]:
    differences = [one[question] - other[question] for question in one if question in other]
    wins = sum(difference > 0 for difference in differences)
    losses = sum(difference < 0 for difference in differences)
    return {
        "first": first,
        "second": second,
        "questions": len(differences),
        "wins": wins,
        "losses": losses,
        "difference": sum(differences) / max(1, len(differences)),
        "interval": bootstrap_mean(differences),
        "p_value": sign_test(wins, losses),
    }
