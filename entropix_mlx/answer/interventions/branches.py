"""The rollouts of a branch point while they grow: which are followed on, and which one wins."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from ...errors import ProfileError
from ...profiles.sections import ForkRule
from ...step import (
    Branch,
    ChosenBy,
    Fork,
    Stopped,
)
from ..position import Reading
from .comparison import (
    Copies,
    Lead,
    Way,
    leads,
)
from .sentences import sentence_end

if TYPE_CHECKING:  # an answer is run without MLX, too
    from mlx_lm.tokenizer_utils import TokenizerWrapper

_LARGEST_EXP = 700.0
"""The exponential of a larger number is not finite."""


class Judge(NamedTuple):
    """How the model is asked whether a rollout is good."""

    question: tuple[int, ...]
    """With what both answers begin with."""
    answers: tuple[int, int]
    """The first tokens in which what it says for yes and for no differ."""

    @classmethod
    def of(cls, rule: ForkRule, tokenizer: TokenizerWrapper) -> Judge:
        """Return the judge of a profile.

        Raises:
            ProfileError: its text has no tokens, or yes and no are not told apart by theirs.
        """
        texts = rule.judge_text, rule.judge_yes, rule.judge_no
        question, yes, no = (tokenizer.encode(text, add_special_tokens=False) for text in texts)
        pairs = enumerate(zip(yes, no, strict=False))
        differs = next((place for place, (one, other) in pairs if one != other), None)
        if not question or differs is None:
            raise ProfileError(
                "branch.judge_text must have tokens in this model's vocabulary, and neither of"
                " judge_yes and judge_no may be the beginning of the other: change the texts"
            )
        return cls((*question, *yes[:differs]), (yes[differs], no[differs]))


class Drafts:
    """The rollouts of one branch point while they grow, and their comparison.

    Of those that may still grow, the first is always followed on. The worse half of the others is
    dropped at the lengths that the profile says, and the last one where it is behind the first.
    Where nothing more can be learnt, only the one that wins goes on, to the end of its sentence.
    """

    def __init__(
        self,
        first: Sequence[Reading],
        rule: ForkRule,
        ends: Ends,
        depth: int,
        *,
        copies: Copies,
        judge: Judge | None = None,
    ) -> None:
        """Begin one rollout for each first token; none grows beyond `depth` tokens."""
        self.all = [Draft(reading, ends.length) for reading in first]
        self._rule = rule
        self._ends = ends
        self._depth = depth
        self._copies = copies
        self._judge = judge
        self._length = 1
        self._judged: dict[int, float] = {}
        self._closest: float | None = None
        self._drop_some()

    @property
    def living(self) -> tuple[int, ...]:
        """The numbers of the rollouts that may grow."""
        return tuple(number for number, draft in enumerate(self.all) if draft.living)

    @property
    def growing(self) -> bool:
        """Whether any rollout may still grow."""
        return self._length < self._depth and bool(self.living)

    @property
    def at_last(self) -> bool:
        """Whether the next token of each rollout is its last, for the depth allows no more."""
        return self._length + 1 == self._depth

    def readings(self, branch: int) -> list[Reading]:
        """Return the positions of a rollout so far."""
        return self.all[branch].readings

    def grow(self, readings: Sequence[Reading]) -> None:
        """Add a token to each of the living rollouts; then drop those that are behind."""
        for number, reading in zip(self.living, readings, strict=True):
            self.all[number].grow(reading)
        self._length += 1
        self._drop_some()

    def compare(self) -> Fork:
        """Return what the rollouts amount to; another than the first must lead by the margin."""
        found = self._leads()
        winner = self._leader(found)
        agreed = self._judged.get(winner, 1.0) >= self._judged.get(0, 0.0)
        question = 0 if self._judge is None else len(self._judge.question) * len(self._judged)
        return Fork(
            branches=tuple(self._branch(number, lead) for number, lead in enumerate(found)),
            winner=winner if agreed else 0,
            chosen_by=ChosenBy.SCORE if agreed else ChosenBy.JUDGE,
            closest=self._closest,
            lookahead_tokens=question + sum(draft.beyond for draft in self.all),
        )

    def close(self, fork: Fork) -> bool:
        """Tell whether the leads hardly tell the first and the best of the others apart."""
        first, *others = fork.branches
        best = max(others, key=lambda branch: branch.lead or 0.0)
        near = abs(best.lead or 0.0) <= self._rule.ask_margin * (best.error or 0.0)
        return near and best.text != first.text

    def second_opinion(self) -> Opinion | None:
        """Return what is to be read before another rollout than the first wins, if anything."""
        leader = self._leader(self._leads())
        if self._judge is None or not leader:
            return None
        both = 0, leader
        return Opinion(
            self._judge.question, tuple(self.all[number].unread for number in both), both
        )

    def judge(self, answers: Sequence[Sequence[Reading]]) -> None:
        """Take note of what the model says after the question: its readings of yes and no."""
        leader = self._leader(self._leads())
        for number, (yes, no) in zip((0, leader), answers, strict=True):
            self._judged[number] = 1 / (1 + math.exp(min(no.logprob - yes.logprob, _LARGEST_EXP)))

    @property
    def answers(self) -> tuple[int, int]:
        """The tokens of which `judge` is to be told."""
        if self._judge is None:
            raise RuntimeError("nobody is asked for a second opinion")
        return self._judge.answers

    def _leads(self) -> list[Lead]:
        ways = [
            Way([reading.logprob for reading in draft.readings], self._copies.marks(draft.tokens))
            for draft in self.all
        ]
        return leads(ways)

    def _leader(self, found: Sequence[Lead]) -> int:
        """Return the rollout that leads by more than the margin, or the first."""
        ahead = [
            number
            for number, lead in enumerate(found)
            if lead.exceeds(self._rule.margin) and self.all[number].stopped is not Stopped.BEHIND
        ]
        return max(ahead, key=lambda number: found[number].nats, default=0)

    def _drop_some(self) -> None:
        """Stop following what is behind, or cannot change the comparison any more."""
        if not self._rule.halve_from or len(self.all) < 2:
            return
        found = self._leads()
        others = sorted((n for n in self.living if n), key=lambda n: -found[n].nats)
        if self._rule.halves_at(self._length) and others:
            self._halve(others, found)
        if not self.all[0].living or self.living == (0,):
            winner = self._leader(found)
            for number in self.living:
                if number != winner:
                    self.all[number].stopped = Stopped.DECIDED

    def _halve(self, others: Sequence[int], found: Sequence[Lead]) -> None:
        """Drop the worse half of some rollouts, or a single one where it is behind the first.

        Args:
            others: their numbers, the best first.
            found: how far each rollout leads.
        """
        gaps = [found[number].nats for number in others]
        keep = len(others) // 2 if len(others) > 1 else int(gaps[0] > 0)
        near = gaps[keep - 1] - gaps[keep] if len(others) > 1 else abs(gaps[0])
        self._closest = near if self._closest is None else min(near, self._closest)
        for number in others[keep:]:
            self.all[number].stopped = Stopped.BEHIND

    def _branch(self, number: int, lead: Lead) -> Branch:
        draft = self.all[number]
        return Branch(
            tokens=tuple(draft.tokens),
            text=self._ends.text(draft.tokens),
            mean_logprob=fmean(reading.logprob for reading in draft.readings),
            mean_entropy=fmean(reading.decision.metrics.entropy for reading in draft.readings),
            first_logprob=draft.readings[0].logprob,
            lead=lead.nats,
            error=lead.error,
            copied=sum(self._copies.marks(draft.tokens)),
            stopped=draft.stopped,
            judged=self._judged.get(number),
        )


class Opinion(NamedTuple):
    """What is read for a second opinion; the fields are those of `Read`."""

    tokens: tuple[int, ...]
    after: tuple[int | None, ...]
    branches: tuple[int, ...]


class Draft:
    """A rollout while it grows."""

    def __init__(self, first: Reading, end: Callable[[list[int]], int | None]) -> None:
        """Begin with the position of the branch point.

        Args:
            first: that position, with the rollout's first token.
            end: tells after how many of its tokens a rollout ends, or None if it goes on.
        """
        self.readings: list[Reading] = []
        self.ended = False
        self.stopped: Stopped | None = None
        """As in `Branch`."""
        self._end = end
        self._followed = 0
        self.grow(first)

    @property
    def living(self) -> bool:
        """Whether it may grow."""
        return not self.ended and self.stopped is None

    @property
    def tokens(self) -> list[int]:
        """The token ids so far."""
        return [reading.token for reading in self.readings]

    @property
    def beyond(self) -> int:
        """Tokens that followed its end, by which that was known."""
        return self._followed - len(self.readings)

    @property
    def unread(self) -> int | None:
        """Its last token; None where the model has read that already."""
        return None if self.beyond else self.tokens[-1]

    def grow(self, reading: Reading) -> None:
        """Add a token; then see whether the rollout ends, perhaps some tokens earlier."""
        self.readings.append(reading)
        self._followed += 1
        length = self._end(self.tokens)
        if length is not None:
            self.readings = self.readings[:length]
            self.ended = True


class Ends:
    """Knows where a rollout ends: with its text, with the answer, or with a sentence."""

    def __init__(
        self, tokenizer: TokenizerWrapper, before: Sequence[int], stops: Sequence[str]
    ) -> None:
        self._tokenizer = tokenizer
        self._before = list(before)
        self._stops = stops
        # The bytes of a character that is not complete yet decode to a replacement character.
        self._known = tokenizer.decode(self._before).rstrip("\ufffd")

    def text(self, tokens: list[int]) -> str:
        """Return what the tokens add to the text before them."""
        return self._whole(tokens)[len(self._known) :]

    def length(self, tokens: list[int]) -> int | None:
        """Return after how many of its tokens a rollout ends, or None if it goes on."""
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
