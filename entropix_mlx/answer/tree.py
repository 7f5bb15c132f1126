"""The tree of the answers to a prompt: where another answer can begin inside one that is complete.

    answer 1   The  sky  is  blue  .
    answer 2              └─ was  grey  .      "was" is a leaf of answer 1,
    answer 3                       └─ dark  .  "dark" is one of answer 2

A leaf is a token that could have stood at some place of an answer and did not. The answer that
begins with it shares the tokens before it, and goes on as if its token had been drawn. No two
answers of a tree have the same tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ..profiles.sections import MODE_ANSWERS, ForkRule
from ..step import NOT_OF_THE_MODEL, Step
from .interventions.forks import chance


class TreeLeaf(NamedTuple):
    """Another token at a place of an answer."""

    answer: int
    """Number of the answer."""
    place: int
    """Index of the token in whose stead it stands."""
    token: int
    logprob: float
    """Natural log probability at temperature 1."""
    path_logprob: float
    """The sum of those of the tokens before it and its own; under a constraint, given that they are
    allowed."""


def leaves_of(
    number: int, steps: Sequence[Step], begun: int, rule: ForkRule, seed: int
) -> Iterator[TreeLeaf]:
    """Yield the leaves of an answer, place by place, the most probable of each place first.

    Args:
        number: of the answer.
        steps: with as many `top_logprobs` as the rule has branches.
        begun: how many of them it shares with the answer that it began in, the token included with
            which it began.
        rule: with the mode `MODE_ANSWERS`, there are leaves where the rule forks; otherwise
        anywhere. seed: of the answers.
    """
    path = 0.0
    for step in steps:
        own = step.index >= begun and step.origin not in NOT_OF_THE_MODEL
        if own and (rule.mode != MODE_ANSWERS or rule.forks(step, chance(seed, step.index))):
            removed = step.allowed_logprob - step.logprob
            for other in (step.allowed or step.top_logprobs)[: rule.width_at(step.entropy)]:
                if other.token != step.token:
                    given = other.logprob - removed
                    yield TreeLeaf(number, step.index, other.token, given, path + other.logprob)
        path += step.allowed_logprob


def in_order(leaves: Iterable[TreeLeaf], rule: ForkRule) -> list[TreeLeaf]:
    """Return leaves in the order in which answers begin: with the mode `MODE_ANSWERS`, from left to
    right; otherwise, the most probable first (arXiv 2604.20500)."""
    if rule.mode == MODE_ANSWERS:
        return sorted(leaves, key=lambda leaf: (leaf.place, -leaf.path_logprob))
    return sorted(leaves, key=lambda leaf: -leaf.path_logprob)
