"""Forks: several branches are followed from a position, compared, and one becomes the text.

All branches use the randomness of the position they are at, so a branch is what would have been
generated, had its first token been drawn. They are compared with the first one, position by
position. With x_t the log probability of a branch's token t, and m tokens in common:

    d_t   = x_t of the branch − x_t of the first
    lead  = mean of d_t                                     nats a token
    s²    = Σ (d_t − lead)² / Σ (m − 1), over all branches  the variance of a single token
    error = s / √m                                          the standard error of the lead

That is the paired comparison of two means, with one variance for the whole fork, since a branch may
have few tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from ..profiles.sections import BranchStrategy
from ..samplers.row import Row
from ..step import Branch, ChosenBy, Fork, Origin, Step, Strategy
from .hooks import OnFork
from .interventions import TAIL, Allowance, AnswerSoFar
from .sentences import sentence_end

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper


class Forks:
    """The intervention that forks where the strategy is `branch`."""

    def __init__(
        self,
        rule: BranchStrategy,
        on_fork: OnFork | None = None,
        *,
        stops: Sequence[str] = (),
        asks: bool = False,
    ) -> None:
        """Strings of `stops` end a branch; with `asks`, a person decides close calls."""
        self._rule = rule
        self._on_fork = on_fork
        self._stops = tuple(stops)
        self._asks = asks
        self._allowance = Allowance(rule.max_branches, rule.min_gap)
        self._inside = False

    @property
    def active(self) -> bool:
        return self._allowance.left and self._rule.width > 1

    def __call__(self, answer: AnswerSoFar, row: Row) -> ForkTrial | None:
        """Return the branches of a fork at a position; `max_tokens` is ignored on purpose, so that
        a short answer is the beginning of a long one."""
        if self._rule.width < 2 or row.forced or row.strategy is not Strategy.BRANCH:
            return None
        if not self._allowance.allows(answer.index):
            return None
        tail = [*answer.prompt[-TAIL:], *answer.tokens][-TAIL:]
        return ForkTrial(
            row.openings(self._rule.width),
            self._rule,
            Ends(answer.tokenizer, tail, self._stops),
            max(1, min(self._rule.depth, answer.room)),
            None if self._on_fork is None else partial(self._on_fork, answer.index),
            asks=self._asks,
        )

    def observe(self, step: Step) -> None:
        continues = self._inside and step.origin in (Origin.BRANCH, Origin.CHOSEN)
        self._inside = step.fork is not None or continues
        if step.fork is not None:
            self._allowance.begin()
        if self._inside:
            self._allowance.cover(step.index)


class ForkTrial:
    """The branches of one fork while they grow, and their comparison."""

    def __init__(
        self,
        first: Sequence[Row],
        rule: BranchStrategy,
        ends: Ends,
        depth: int,
        listen: Callable[[Fork], None] | None = None,
        *,
        asks: bool = False,
    ) -> None:
        """Begin one branch for each first token; none grows beyond `depth` tokens."""
        self.branches = [GrowingBranch(row, ends, depth) for row in first]
        self._rule = rule
        self._ends = ends
        self._listen = listen
        self._asks = asks
        self._chosen: Fork | None = None

    @property
    def living(self) -> list[GrowingBranch]:
        return [branch for branch in self.branches if branch.living]

    def report(self) -> None:
        """Show the caller how far the branches have grown."""
        if self._listen is not None:
            self._listen(self.fork())

    @property
    def undecided(self) -> Fork | None:
        """The fork, where a person is to choose among its branches."""
        if not self._asks or self._chosen is not None:
            return None
        fork = self.fork()
        first, *others = fork.branches
        best = max(others, key=lambda branch: branch.lead or 0.0, default=first)
        near = abs(best.lead or 0.0) <= self._rule.ask_margin * (best.error or 0.0)
        return fork if near and best.text != first.text else None

    def choose(self, branch: int) -> None:
        """Take the branch that a person chose. Raises `ValueError` if there is no such branch."""
        if not 0 <= branch < len(self.branches):
            raise ValueError(f"choose() must return an index of a branch, not {branch!r}")
        self._chosen = replace(self.fork(), winner=branch, chosen_by=ChosenBy.USER)

    def fork(self) -> Fork:
        """Return the comparison so far; another branch than the first must lead by the margin."""
        if self._chosen is not None:
            return self._chosen
        found = leads([[row.logprob for row in branch.rows] for branch in self.branches])
        ahead = [number for number, lead in enumerate(found) if lead.exceeds(self._rule.margin)]
        return Fork(
            branches=tuple(map(self._branch, self.branches, found)),
            winner=max(ahead, key=lambda number: found[number].nats, default=0),
            lookahead_tokens=sum(branch.beyond for branch in self.branches),
        )

    def _branch(self, branch: GrowingBranch, lead: Lead) -> Branch:
        return Branch(
            tokens=tuple(branch.tokens),
            text=self._ends.text(branch.tokens),
            mean_logprob=fmean(row.logprob for row in branch.rows),
            mean_entropy=fmean(row.metrics.entropy for row in branch.rows),
            first_logprob=branch.rows[0].logprob,
            lead=lead.nats,
            error=lead.error,
        )


class GrowingBranch:
    """A branch, up to its end or the depth that all may have."""

    def __init__(self, first: Row, ends: Ends, depth: int) -> None:
        self.rows: list[Row] = []
        self.living = True
        self._ends = ends
        self._depth = depth
        self._followed = 0
        self.grow(first)

    @property
    def tokens(self) -> list[int]:
        return [row.token for row in self.rows]

    @property
    def beyond(self) -> int:
        """Tokens that were followed beyond its end, which only they showed."""
        return self._followed - len(self.rows)

    def grow(self, row: Row) -> None:
        """Add a token; then see whether the branch ends, perhaps some tokens earlier."""
        self.rows.append(row.sampled())
        self._followed += 1
        length = self._ends.length(self.tokens)
        if length is not None:
            self.rows = self.rows[:length]
        self.living = length is None and self._followed < self._depth


class Ends:
    """Finds the end of a branch: that of its text, of the answer, or of a sentence."""

    def __init__(
        self, tokenizer: TokenizerWrapper, before: Sequence[int], stops: Sequence[str]
    ) -> None:
        self._tokenizer = tokenizer
        self._before = list(before)
        self._stops = stops
        # The bytes of a character that is not complete yet decode to a replacement character.
        self._known = tokenizer.decode(self._before).rstrip("\ufffd")

    def text(self, tokens: list[int]) -> str:
        return self._whole(tokens)[len(self._known) :]

    def length(self, tokens: list[int]) -> int | None:
        """Return after how many of its tokens a branch ends, or None if it goes on."""
        if tokens[-1] in self._tokenizer.eos_token_ids:
            return len(tokens)
        text = self.text(tokens)
        if any(stop in text for stop in self._stops):
            return len(tokens)
        end = sentence_end(self._whole(tokens), len(self._known))
        if end is None:
            return None
        return next(n for n in range(1, len(tokens) + 1) if len(self._whole(tokens[:n])) >= end)

    def _whole(self, tokens: list[int]) -> str:
        printable = [token for token in tokens if token not in self._tokenizer.eos_token_ids]
        return str(self._tokenizer.decode(self._before + printable))


class Lead(NamedTuple):
    """How far a branch is ahead of the first one."""

    nats: float  # a token; negative where it is behind
    error: float | None
    """The standard error of that; None where no token but the first of any branch is compared."""

    def exceeds(self, margin: float) -> bool:
        return self.error is not None and self.nats > margin * self.error


def leads(branches: Sequence[Sequence[float]]) -> list[Lead]:
    """Return how far each branch is ahead of the first, which is 0 ahead of itself.

    Args:
        branches: the natural log probabilities of the tokens of each.
    """
    first, *others = branches
    compared = [
        [one - other for one, other in zip(branch, first, strict=False)] for branch in others
    ]
    means = [fmean(differences) for differences in compared]
    freedom = sum(len(differences) - 1 for differences in compared)
    squares = sum(
        (difference - mean) ** 2
        for differences, mean in zip(compared, means, strict=True)
        for difference in differences
    )
    one = math.sqrt(squares / freedom) if freedom else None
    found = [
        Lead(mean, None if one is None else one / math.sqrt(len(differences)))
        for mean, differences in zip(means, compared, strict=True)
    ]
    return [Lead(0.0, 0.0), *found]
