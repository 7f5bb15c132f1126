"""Forks: several branches are followed from a position, compared, and one becomes the text.

All branches use the randomness of the position they are at, so a branch is what would have been
generated, had its first token been drawn.

Branches are compared with the first one, position by position over the tokens that both have,
because the tokens of one position have something in common: at a fork's own position every token is
improbable. With x_t the log probability of a branch's token t, and m tokens in common:

    d_t   = x_t of the branch − x_t of the first
    lead  = mean of d_t                                     nats a token
    s²    = Σ (d_t − lead)² / Σ (m − 1), over all branches  the variance of a single token
    error = s / √m                                          the standard error of the lead

That is the paired comparison of two means, with one variance for the whole fork: a branch may have
few tokens, from which alone no variance can be estimated. A token that copies (see `Copies`) does
not count in favour of its branch: of such a d_t, only what speaks against that branch counts.
"""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from ...profiles.sections import MODE_TEXT, ForkRule
from ...step import Branch, ChosenBy, Fork, Origin, Step, Stopped
from ..hooks import OnFork
from ..position import Position
from ..requests import DRAWN, NOTHING, Advance, Ask
from ..writer import Record
from .base import TAIL, Allowance, Outcome, Trial
from .prose import sentence_end

if TYPE_CHECKING:  # an answer is run without MLX, too
    from mlx_lm.tokenizer_utils import TokenizerWrapper


class Forks:
    """The forks of one answer."""

    def __init__(
        self,
        rule: ForkRule,
        tokenizer: TokenizerWrapper,
        on_fork: OnFork | None = None,
        *,
        seed: int = 0,
        prompt: Sequence[int] = (),
        stops: Sequence[str] = (),
        asks: bool = False,
    ) -> None:
        """Prepare the forks of an answer.

        Args:
            seed: of the answer; what is left to chance depends on it and on the position alone.
            prompt: the tokens before the answer, which branches may copy.
            stops: strings that end the answer, and with it a branch.
            asks: whether a person decides forks that are too close to call.
        """
        self._rule = rule
        self._tokenizer = tokenizer
        self._on_fork = on_fork
        self._seed = seed
        self._stops = tuple(stops)
        self._asks = asks
        self._copies = Copies(rule.copy_length)
        self._copies.follow(prompt)
        self._tail = deque(prompt, maxlen=TAIL)
        self._allowance = Allowance(rule.max_branches, rule.min_gap)
        self._inside = False

    def due(self, index: int, here: Position, room: int) -> bool:
        return self._width(index, here) > 1

    def propose(self, index: int, here: Position, room: int) -> Trial | None:
        """As in `Intervention`.

        `max_tokens` is ignored on purpose, so that a short answer is the beginning of a long one.
        """
        width = self._width(index, here)
        if width == 1:
            return None
        ends = Ends(self._tokenizer, self._tail, self._stops)
        depth = max(1, min(self._rule.depth, room))
        listen = None if self._on_fork is None else partial(self._on_fork, index)
        return ForkTrial(
            here.openings(width), self._rule, ends, depth, self._copies, listen, asks=self._asks
        )

    def observe(self, step: Step) -> None:
        self._copies.follow([step.token])
        self._tail.append(step.token)
        continues = self._inside and step.origin in (Origin.BRANCH, Origin.CHOSEN)
        self._inside = step.fork is not None or continues
        if step.fork is not None:
            self._allowance.begin()
        if self._inside:
            self._allowance.cover(step.index)

    def _width(self, index: int, here: Position) -> int:
        """Return how many branches to follow from a position: 1 where there is no fork."""
        if self._rule.mode != MODE_TEXT or here.forced or not self._allowance.allows(index):
            return 1
        if not self._rule.forks(here.decision, chance(self._seed, index)):
            return 1
        return self._rule.width_at(here.entropy)


class ForkTrial(Trial):
    """The branches of one fork while they grow, and their comparison.

    Of those that may still grow, the first is always followed. The worse half of the others is
    pruned at the lengths that the profile names (successive halving), and the last one where it is
    behind the first. Where nothing more can be learnt, only the winner goes on, to the end of its
    sentence.
    """

    def __init__(
        self,
        first: Sequence[Position],
        rule: ForkRule,
        ends: Ends,
        depth: int,
        copies: Copies,
        listen: Callable[[Fork], None] | None = None,
        *,
        asks: bool = False,
    ) -> None:
        """Begin one branch for each first token; none grows beyond `depth` tokens."""
        self.branches = len(first)
        self._all = [GrowingBranch(position, ends.length) for position in first]
        self._rule = rule
        self._ends = ends
        self._depth = depth
        self._copies = copies
        self._listen = listen
        self._asks = asks
        self._length = 1
        self._closest: float | None = None
        self._decided: Fork | None = None
        self._prune()
        self._report()

    def advance(self) -> Advance | Ask | None:
        if self._length < self._depth and self._living:
            last = {number: self._all[number].positions[-1] for number in self._living}
            return Advance.after(last, NOTHING if self._length + 1 == self._depth else DRAWN)
        if self._asks and self._decided is None and self._is_close(fork := self.fork()):
            return Ask(fork)
        return None

    def extend(self, found: Sequence[Position]) -> None:
        """Add a token to each of the living branches; then prune those that are behind."""
        for number, position in zip(self._living, found, strict=True):
            self._all[number].grow(position.sampled())
        self._length += 1
        self._prune()
        self._report()

    def choose(self, fork: Fork) -> None:
        self._decided = fork

    def outcome(self, cancelled: bool) -> Outcome:
        """As in `Trial`; a fork that was cancelled is decided by what it has."""
        fork = self._decided or self.fork()
        positions = self._all[fork.winner].positions
        origin = Origin.CHOSEN if fork.chosen_by is ChosenBy.USER else Origin.BRANCH
        return Outcome(
            branch=fork.winner,
            positions=positions,
            origins=[origin] * len(positions),
            record=Record(fork=fork, rolled_back=1),
        )

    def fork(self) -> Fork:
        """Return the comparison so far; another branch than the first must lead by the margin."""
        found = self._leads()
        return Fork(
            branches=tuple(self._branch(number, lead) for number, lead in enumerate(found)),
            winner=self._leader(found),
            closest=self._closest,
            lookahead_tokens=sum(branch.beyond for branch in self._all),
        )

    def _report(self) -> None:
        if self._listen is not None:
            self._listen(self.fork())

    @property
    def _living(self) -> tuple[int, ...]:
        return tuple(number for number, branch in enumerate(self._all) if branch.living)

    def _is_close(self, fork: Fork) -> bool:
        first, *others = fork.branches
        best = max(others, key=lambda branch: branch.lead or 0.0)
        near = abs(best.lead or 0.0) <= self._rule.ask_margin * (best.error or 0.0)
        return near and best.text != first.text

    def _leads(self) -> list[Lead]:
        compared = []
        for branch in self._all:
            logprobs = [position.logprob for position in branch.positions]
            compared.append(Compared(logprobs, self._copies.marks(branch.tokens)))
        return leads(compared)

    def _leader(self, found: Sequence[Lead]) -> int:
        ahead = [
            number
            for number, lead in enumerate(found)
            if lead.exceeds(self._rule.margin) and self._all[number].stopped is not Stopped.BEHIND
        ]
        return max(ahead, key=lambda number: found[number].nats, default=0)

    def _prune(self) -> None:
        if not self._rule.halve_from or len(self._all) < 2:
            return
        found = self._leads()
        others = sorted((n for n in self._living if n), key=lambda n: -found[n].nats)
        if self._rule.halves_at(self._length) and others:
            self._halve(others, found)
        if not self._all[0].living or self._living == (0,):
            winner = self._leader(found)
            for number in self._living:
                if number != winner:
                    self._all[number].stopped = Stopped.DECIDED

    def _halve(self, others: Sequence[int], found: Sequence[Lead]) -> None:
        """Prune the worse half of some branches, best first, or a single one behind the first."""
        gaps = [found[number].nats for number in others]
        keep = len(others) // 2 if len(others) > 1 else int(gaps[0] > 0)
        near = gaps[keep - 1] - gaps[keep] if len(others) > 1 else abs(gaps[0])
        self._closest = near if self._closest is None else min(near, self._closest)
        for number in others[keep:]:
            self._all[number].stopped = Stopped.BEHIND

    def _branch(self, number: int, lead: Lead) -> Branch:
        branch = self._all[number]
        return Branch(
            tokens=tuple(branch.tokens),
            text=self._ends.text(branch.tokens),
            mean_logprob=fmean(position.logprob for position in branch.positions),
            mean_entropy=fmean(position.entropy for position in branch.positions),
            first_logprob=branch.positions[0].logprob,
            lead=lead.nats,
            error=lead.error,
            copied=sum(self._copies.marks(branch.tokens)),
            stopped=branch.stopped,
        )


class GrowingBranch:
    """A branch while it grows."""

    def __init__(self, first: Position, end: Callable[[list[int]], int | None]) -> None:
        self.positions: list[Position] = []
        self.ended = False
        self.stopped: Stopped | None = None
        """As in `Branch`."""
        self._end = end
        self._followed = 0
        self.grow(first)

    @property
    def living(self) -> bool:
        return not self.ended and self.stopped is None

    @property
    def tokens(self) -> list[int]:
        return [position.token for position in self.positions]

    @property
    def beyond(self) -> int:
        """Tokens that were followed beyond its end, which only they showed."""
        return self._followed - len(self.positions)

    def grow(self, position: Position) -> None:
        """Add a token; then see whether the branch ends, perhaps some tokens earlier."""
        self.positions.append(position)
        self._followed += 1
        length = self._end(self.tokens)
        if length is not None:
            self.positions = self.positions[:length]
            self.ended = True


class Ends:
    """Finds the end of a branch: that of its text, of the answer, or of a sentence."""

    def __init__(
        self, tokenizer: TokenizerWrapper, before: Iterable[int], stops: Sequence[str]
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


class Compared(NamedTuple):
    """The tokens of a branch: their natural log probabilities at temperature 1, and which copy."""

    logprobs: Sequence[float]
    copied: Sequence[bool]


class Lead(NamedTuple):
    """How far a branch is ahead of the first one."""

    nats: float
    """A token; negative where it is behind."""
    error: float | None
    """The standard error of that; None where no token but the first of any branch is compared."""

    def exceeds(self, margin: float) -> bool:
        """Tell whether the branch is ahead by more than so many standard errors."""
        return self.error is not None and self.nats > 0 and self.nats > margin * self.error


def leads(branches: Sequence[Compared]) -> list[Lead]:
    """Return how far each branch is ahead of the first, which is 0 ahead of itself."""
    first, *others = branches
    compared = [_differences(branch, first) for branch in others]
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


def _differences(branch: Compared, first: Compared) -> list[float]:
    found = []
    for one, other, copies, first_copies in zip(
        branch.logprobs, first.logprobs, branch.copied, first.copied, strict=False
    ):
        difference = one - other
        if copies:
            difference = min(difference, 0.0)
        if first_copies:
            difference = max(difference, 0.0)
        found.append(difference)
    return found


class Copies:
    """The n-grams of a text, prompt and answer, and which tokens of a branch copy one.

    A token that completes an n-gram which stood before is a copy; with a length of 0, none is.

    The index grows when it is asked, so that an answer without forks does not pay for it.
    """

    def __init__(self, length: int) -> None:
        self._length = length
        self._text: list[int] = []
        self._ngrams: set[tuple[int, ...]] = set()
        self._indexed = 0

    def follow(self, tokens: Iterable[int]) -> None:
        self._text.extend(tokens)

    def marks(self, tokens: Sequence[int]) -> list[bool]:
        """Tell of each token of a branch that goes on from the text whether it is a copy.

        A branch that repeats itself copies, too.
        """
        if not self._length:
            return [False] * len(tokens)
        known = len(self._text)
        self._ngrams.update(_ngrams(self._text, range(self._indexed, known), self._length))
        self._indexed = known
        tail = self._text[max(0, known - self._length + 1) :]
        own: set[tuple[int, ...]] = set()
        marks = []
        last = range(len(tail), len(tail) + len(tokens))
        for ngram in _ngrams([*tail, *tokens], last, self._length):
            marks.append(ngram in self._ngrams or ngram in own)
            own.add(ngram)
        return [False] * (len(tokens) - len(marks)) + marks


def _ngrams(tokens: Sequence[int], last: range, length: int) -> Iterator[tuple[int, ...]]:
    for place in last:
        if place + 1 >= length:
            yield tuple(tokens[place + 1 - length : place + 1])


def chosen(fork: Fork, branch: int) -> Fork:
    """Return the record of a fork whose winner a person chose.

    Raises:
        ValueError: there is no such branch.
    """
    if not 0 <= branch < len(fork.branches):
        raise ValueError(f"choose() must return an index of a branch, not {branch!r}")
    return replace(fork, winner=branch, chosen_by=ChosenBy.USER)


def chance(seed: int, index: int) -> float:
    """Return a number in [0, 1), a function of the seed and the position in the answer alone."""
    digest = hashlib.blake2b(f"{seed}:{index}:fork".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") / 2**32
