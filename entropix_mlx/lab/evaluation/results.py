"""Results of a run: accuracy, cost, contrasts between arms, votes.

Everything is paired by question: all arms answer the same questions with the same random numbers.
Answers made of several (what most of them say, or the most probable one) are arms, too. They cost
what all answers cost that they are made of. Majority vote is self-consistency (arXiv 2203.11171).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import fmean
from typing import NamedTuple

from ...errors import PromptError
from ...profiles.confidence import score_of
from ...profiles.fields import hint
from . import grading
from .records import AnswerRecord
from .statistics import Interval, bootstrap_mean, holm, sign_test, wilson

ALL_LEVELS = "all"
Means = dict[str, dict[str, float]]  # by arm and question
Pair = tuple[str, str]
"""The names of two arms, of which the first is compared with the second."""


@dataclass(frozen=True)
class Accuracy:
    """The answers of one arm to the questions of one level, or to all of them."""

    arm: str
    level: str
    n: int
    right: int
    interval: Interval
    """Wilson's, at 95 %. With several seeds the answers to a question are not independent: it is
    then too narrow, and the contrasts are what counts."""
    committed: int
    discarded: int
    """Tokens that went through the model and did not become part of an answer."""

    @property
    def accuracy(self) -> float:
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
    """Questions that the first arm answers right more often."""
    losses: int
    difference: float
    interval: Interval
    """Bootstrap over questions, at 95 %."""
    p_value: float
    """Sign test over questions; with one seed, McNemar's exact test."""
    adjusted: float
    """The p-value after Holm, over all contrasts that are reported."""
    logprob: float
    """The difference of mean log p, in nats a token; NaN where no question has it in both arms."""
    logprob_interval: Interval


@dataclass(frozen=True)
class Results:
    """Accuracies and contrasts of a run."""

    accuracies: tuple[Accuracy, ...]
    contrasts: tuple[Contrast, ...]


def summarize(records: Sequence[AnswerRecord], pairs: Sequence[Pair] = ()) -> Results:
    """Return accuracies and contrasts, in the order of the first answers; () compares every two.

    Raises:
        PromptError: an arm that is to be compared has no answers.
    """
    by_arm: dict[str, list[AnswerRecord]] = defaultdict(list)
    for record in records:
        by_arm[record.question.arm].append(record)
    accuracies = [
        accuracy for arm, answers in by_arm.items() for accuracy in _accuracies(arm, answers)
    ]
    return Results(tuple(accuracies), tuple(_contrasts(by_arm, pairs)))


def level_name(record: AnswerRecord) -> str:
    task, level = record.question.task, record.question.level
    return level if level == task else f"{task}/{level}"


def _accuracies(arm: str, answers: Sequence[AnswerRecord]) -> list[Accuracy]:
    levels: dict[str, list[AnswerRecord]] = defaultdict(list)
    for answer in answers:
        levels[level_name(answer)].append(answer)
    every = {ALL_LEVELS: answers} if len(levels) > 1 else {}
    return [_accuracy(arm, level, group) for level, group in {**every, **levels}.items()]


def _accuracy(arm: str, level: str, answers: Sequence[AnswerRecord]) -> Accuracy:
    right = sum(answer.graded.right for answer in answers)
    return Accuracy(
        arm,
        level,
        len(answers),
        right,
        wilson(right, len(answers)),
        sum(answer.graded.committed for answer in answers),
        sum(answer.graded.discarded for answer in answers),
    )


def _contrasts(by_arm: dict[str, list[AnswerRecord]], pairs: Sequence[Pair] = ()) -> list[Contrast]:
    check_pairs(pairs, by_arm)
    shares, logprobs = (
        {arm: _means(answers, value) for arm, answers in by_arm.items()}
        for value in (lambda answer: float(answer.graded.right), _mean_logprob)
    )
    every = [(first, second) for second, first in combinations(by_arm, 2)]
    found = [_contrast(pair, shares, logprobs) for pair in pairs or every]
    adjusted = holm([one.p_value for one in found])
    return [replace(one, adjusted=p) for one, p in zip(found, adjusted, strict=True)]


def check_pairs(pairs: Sequence[Pair], known: Collection[str]) -> None:
    """Check that the arms to compare exist.

    Raises:
        PromptError: one does not.
    """
    for name in (name for pair in pairs for name in pair):
        if name not in known:
            raise PromptError(f"no arm {name!r} to compare; {hint(name, known)}")


def _means(
    answers: Iterable[AnswerRecord], value: Callable[[AnswerRecord], float]
) -> dict[str, float]:
    """Return the mean of a value of each question's answers."""
    found: dict[str, list[float]] = defaultdict(list)
    for answer in answers:
        found[answer.question.id].append(value(answer))
    return {question: fmean(each) for question, each in found.items()}


def _differences(pair: Pair, values: Means) -> list[float]:
    one, other = (values[arm] for arm in pair)
    found = [one[question] - other[question] for question in one if question in other]
    return [difference for difference in found if math.isfinite(difference)]


def _contrast(pair: Pair, shares: Means, logprobs: Means) -> Contrast:
    differences, likelier = _differences(pair, shares), _differences(pair, logprobs)
    wins = sum(difference > 0 for difference in differences)
    losses = sum(difference < 0 for difference in differences)
    p_value = sign_test(wins, losses)
    return Contrast(
        *pair,
        questions=len(differences),
        wins=wins,
        losses=losses,
        difference=sum(differences) / max(1, len(differences)),
        interval=bootstrap_mean(differences),
        p_value=p_value,
        adjusted=p_value,
        logprob=fmean(likelier) if likelier else math.nan,
        logprob_interval=bootstrap_mean(likelier),
    )


class Combination(NamedTuple):
    """How one answer is made of several."""

    n: int
    choose: Callable[[Sequence[AnswerRecord]], AnswerRecord]
    """Chooses among the answers of one arm to one question."""
    name: str
    """Appended to the arm's name."""


def combinations_of(votes: Iterable[int], best_of: Iterable[int]) -> list[Combination]:
    return [
        *(Combination(n, majority, f"vote of {n}") for n in dict.fromkeys(votes)),
        *(Combination(n, most_probable, f"best of {n}") for n in dict.fromkeys(best_of)),
    ]


def check_comparisons(
    arms: Sequence[str], combined: Sequence[Combination], pairs: Sequence[Pair], seeds: int
) -> None:
    """Check votes and contrasts before any answer is generated.

    Raises:
        PromptError: an arm does not exist, or has too few answers to a question.
    """
    for n, _, name in combined:
        if n > seeds:
            raise PromptError(f"a {name} takes {n} answers to each question: add --seeds {n}")
    check_pairs(pairs, [*arms, *(f"{arm} {one.name}" for arm in arms for one in combined)])


def combine(records: Iterable[AnswerRecord], how: Combination) -> list[AnswerRecord]:
    """Return one answer in place of the first few of each arm to each question that has enough."""
    groups: dict[Pair, list[AnswerRecord]] = defaultdict(list)
    for record in records:
        if record.question.seed_number < how.n:
            groups[record.question.arm, record.question.id].append(record)
    return [
        _one_for(sorted(group, key=lambda record: record.question.seed_number), how)
        for group in groups.values()
        if len(group) == how.n
    ]


def majority(answers: Sequence[AnswerRecord]) -> AnswerRecord:
    """Return an answer that says what most do.

    Answers without anything to grade have no vote. Where several have equally many votes, the one
    whose answers are the most probable on average wins.
    """
    votes: dict[str, list[AnswerRecord]] = defaultdict(list)
    for answer in answers:
        votes[grading.extracted(answer.question.rule, answer.text)].append(answer)
    said = {text: each for text, each in votes.items() if text} or votes
    return max(said.values(), key=lambda each: (len(each), fmean(map(_mean_logprob, each))))[0]


def most_probable(answers: Sequence[AnswerRecord]) -> AnswerRecord:
    return max(answers, key=_mean_logprob)


def _one_for(answers: Sequence[AnswerRecord], how: Combination) -> AnswerRecord:
    chosen = how.choose(answers)
    arm = f"{chosen.question.arm} {how.name}"
    graded = replace(
        chosen.graded,
        committed=sum(answer.graded.committed for answer in answers),
        discarded=sum(answer.graded.discarded for answer in answers),
    )
    question = replace(chosen.question, arm=arm, seed_number=0)
    return replace(chosen, question=question, graded=graded)


def _mean_logprob(answer: AnswerRecord) -> float:
    return score_of("mean_logprob", answer.tokens)
