"""Answers made of several: what most of them say, and the most probable one.

Both are arms of their own, made from the answers of an arm that has several seeds. They cost what
all answers cost that they are made of. Majority vote is self-consistency (arXiv 2203.11171).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from statistics import fmean
from typing import NamedTuple

from ...errors import PromptError
from . import grading
from .open_answers import RULE
from .records import Record
from .results import Pair, check_pairs

Choose = Callable[[Sequence[Record]], Record]
"""Takes the answers of one arm to one question; returns the one that speaks for all."""


class Several(NamedTuple):
    """How one answer is made of several."""

    n: int
    """Of how many."""
    choose: Choose
    name: str
    """What is added to the arm's name."""


def majority(answers: Sequence[Record]) -> Record:
    """Return an answer that says what most do.

    Answers without anything to grade have no vote. Where several have equally many votes, the one
    whose answers are the most probable on average wins.
    """
    votes: dict[str, list[Record]] = defaultdict(list)
    for answer in answers:
        votes[grading.extracted(answer.question.rule, answer.text)].append(answer)
    said = {text: each for text, each in votes.items() if text} or votes
    return max(
        said.values(), key=lambda each: (len(each), fmean(_mean_logprob(one) for one in each))
    )[0]


def most_probable(answers: Sequence[Record]) -> Record:
    """Return the answer of the highest mean log probability."""
    return max(answers, key=_mean_logprob)


def made_of_several(votes: Iterable[int], best_of: Iterable[int]) -> list[Several]:
    """Return how answers are made of several.

    Args:
        votes: of how many answers a majority is wanted.
        best_of: among how many the most probable one is wanted.
    """
    return [
        *(Several(n, majority, f"vote of {n}") for n in dict.fromkeys(votes)),
        *(Several(n, most_probable, f"best of {n}") for n in dict.fromkeys(best_of)),
    ]


def check_comparisons(
    arms: Sequence[str], made: Sequence[Several], pairs: Sequence[Pair], seeds: int
) -> None:
    """Check what is to be compared before answers are generated for it.

    Args:
        arms: the names of those that answer.
        made: what is made of their answers.
        pairs: the arms to compare, as for `summarize`.
        seeds: answers of each arm to each question.

    Raises:
        PromptError: an arm is not there, or it has too few answers to a question.
    """
    for n, _, name in made:
        if n > seeds:
            raise PromptError(f"a {name} takes {n} answers to each question: add --seeds {n}")
    check_pairs(pairs, [*arms, *(f"{arm} {name}" for arm in arms for _, _, name in made)])


def joined(records: Iterable[Record], n: int, choose: Choose, name: str) -> list[Record]:
    """Return one answer in place of the first `n` of each arm to each question.

    Args:
        records: answers; of an arm that has fewer to a question, and of open questions, none is
            made.
        n: answers that one is made of.
        choose: `majority` or `most_probable`.
        name: what is added to the arm's name.
    """
    groups: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:
        if record.question.rule != RULE and record.question.seed_number < n:
            groups[record.question.arm, record.question.id].append(record)
    return [
        _one_for(sorted(group, key=lambda record: record.question.seed_number), choose, name)
        for group in groups.values()
        if len(group) == n
    ]


def _one_for(answers: Sequence[Record], choose: Choose, name: str) -> Record:
    chosen = choose(answers)
    return replace(
        chosen,
        question=replace(chosen.question, arm=f"{chosen.question.arm} {name}", seed_number=0),
        graded=replace(
            chosen.graded,
            committed=sum(answer.graded.committed for answer in answers),
            discarded=sum(answer.graded.discarded for answer in answers),
        ),
    )


def _mean_logprob(answer: Record) -> float:
    return fmean(answer.tokens.logprob) if answer.tokens.logprob else float("-inf")
