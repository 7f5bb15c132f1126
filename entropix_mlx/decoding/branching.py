"""What happens at a fork: several ways to go on are followed, compared, and one becomes the text.

The rollouts are decoded as one batch over the cache of the text so far, by the same engine that
decodes the text. All use the randomness of the position they are at: a rollout is what would have
been generated, had its first token been drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean

import mlx.core as mx
from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..profiles.sections import Rollouts
from ..step import Branch, ChosenBy, Origin, Rollout, Step, Strategy
from .budget import Allowance
from .engine import BranchEngine, Pending, Reading, TextEngine, with_tokens
from .sentences import sentence_end

Choose = Callable[[Branch], int]
"""Asked for the index of a rollout; `winner` is the one that would be taken unasked."""


class Branching:
    """The forks of one answer."""

    def __init__(self, rule: Rollouts, tokenizer: TokenizerWrapper, choose: Choose | None) -> None:
        """Set up; without `choose` nobody is asked."""
        self._rule = rule
        self._tokenizer = tokenizer
        self._choose = choose
        self._allowance = Allowance(rule.max_branches, rule.min_gap)
        self._inside = False

    def width(self, index: int, reading: Reading) -> int:
        """Return how many ways to follow from a position: 1 where there is no fork."""
        forks = reading.decision.strategy is Strategy.BRANCH
        if not forks or not self._allowance.allows(index):
            return 1
        return self._rule.width_at(reading.decision.metrics.entropy)

    def observe(self, step: Step) -> None:
        """Count a step that was committed."""
        continues = self._inside and step.origin in (Origin.BRANCH, Origin.CHOSEN)
        self._inside = step.branch is not None or continues
        if step.branch is not None:
            self._allowance.begin()
        if self._inside:
            self._allowance.cover(step.index)

    def follow(
        self,
        engine: TextEngine,
        pending: Pending,
        reading: Reading,
        *,
        width: int,
        room: int,
        before: Sequence[int],
        cancelled: Callable[[], bool],
        pipelined: bool,
    ) -> tuple[Branch, list[Reading]]:
        """Roll out, compare, and put all of the winner but its last token into the cache.

        Args:
            engine: at the position of the fork.
            pending: that position, and what was read of it.
            reading: see `pending`.
            width: number of rollouts.
            room: the tokens that the context still holds. (What an answer may still grow by is no
                matter here: a shorter answer is then the beginning of a longer one.)
            before: the last tokens of the text, by which a number or a word may begin.
            cancelled: asked before every token; then the rollouts stay as long as they are.
            pipelined: whether to queue a position before the last one was read.

        Returns:
            The comparison, and the winner's positions.
        """
        ends = _Ends(self._tokenizer, before)
        first = engine.first_tokens(pending, width)
        drafts = [Draft(start, ends.length) for start in with_tokens(pending, reading, first)]
        depth = min(self._rule.depth, room)
        branches = roll_out(engine, drafts, depth, cancelled, pipelined)
        rollouts = [self._score(draft.readings, ends) for draft in drafts]
        record = self._compare(rollouts, None if cancelled() else self._choose)
        readings = drafts[record.winner].readings
        branches.commit(record.winner, len(readings) - 1)
        return record, readings

    def _score(self, readings: list[Reading], ends: _Ends) -> Rollout:
        tokens = [reading.token for reading in readings]
        mean_logprob = fmean(reading.logprob for reading in readings)
        mean_entropy = fmean(reading.decision.metrics.entropy for reading in readings)
        return Rollout(
            tokens=tuple(tokens),
            text=ends.text(tokens),
            score=mean_logprob - self._rule.entropy_weight * mean_entropy,
            mean_logprob=mean_logprob,
            mean_entropy=mean_entropy,
        )

    def _compare(self, rollouts: list[Rollout], choose: Choose | None) -> Branch:
        """Pick the winner by score, or have it picked where the score hardly tells."""
        ranked = sorted(range(len(rollouts)), key=lambda i: rollouts[i].score, reverse=True)
        best, second = (rollouts[i] for i in ranked[:2])
        leads = best.score - rollouts[0].score > self._rule.margin
        branch = Branch(tuple(rollouts), winner=ranked[0] if leads else 0)
        close = best.score - second.score <= self._rule.ask_margin
        if choose is None or not close or best.text == second.text:
            return branch
        winner = choose(branch)
        if not 0 <= winner < len(rollouts):
            raise ValueError(f"choose() must return an index of a rollout, not {winner!r}")
        return replace(branch, winner=winner, chosen_by=ChosenBy.USER)


class Draft:
    """A rollout while it grows."""

    def __init__(self, first: Reading, end: Callable[[list[int]], int | None]) -> None:
        """Begin with the position of the fork.

        Args:
            first: that position, with the rollout's first token.
            end: tells after how many of its tokens a rollout ends, or None if it goes on.
        """
        self.readings: list[Reading] = []
        self.ended = False
        self._end = end
        self.grow(first)

    @property
    def tokens(self) -> list[int]:
        """The token ids so far."""
        return [reading.token for reading in self.readings]

    def grow(self, reading: Reading) -> None:
        """Add a token, unless the rollout has ended; then see whether it ends."""
        if self.ended:
            return
        self.readings.append(reading)
        length = self._end(self.tokens)
        if length is not None:
            self.readings = self.readings[:length]
            self.ended = True


class _Ends:
    """Knows where a rollout ends: with its text, or with a sentence."""

    def __init__(self, tokenizer: TokenizerWrapper, before: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._before = list(before)
        # The bytes of a character that is not complete yet decode to a replacement character.
        self._known = tokenizer.decode(self._before).rstrip("\ufffd")

    def text(self, tokens: list[int]) -> str:
        """Return what the tokens add to the text before them."""
        return self._whole(tokens)[len(self._known) :]

    def length(self, tokens: list[int]) -> int | None:
        """Return after how many of its tokens a rollout ends, or None if it goes on."""
        if tokens[-1] in self._tokenizer.eos_token_ids:
            return len(tokens)
        end = sentence_end(self._whole(tokens), len(self._known))
        if end is None:
            return None
        return next(n for n in range(1, len(tokens) + 1) if len(self._whole(tokens[:n])) >= end)

    def _whole(self, tokens: list[int]) -> str:
        printable = [token for token in tokens if token not in self._tokenizer.eos_token_ids]
        return str(self._tokenizer.decode(self._before + printable))


def roll_out(
    engine: TextEngine,
    drafts: list[Draft],
    depth: int,
    cancelled: Callable[[], bool],
    pipelined: bool,
) -> BranchEngine:
    """Grow all drafts at once, until each has ended or has `depth` tokens; or until cancelled."""
    branches = engine.fork(depth)
    tokens = mx.array([draft.tokens[0] for draft in drafts])
    ahead = None
    for length in range(1, depth):
        if cancelled() or all(draft.ended for draft in drafts):
            break
        pending = ahead or branches.queue(tokens)
        tokens = pending.drawn.token
        ahead = None
        if pipelined and length + 1 < depth:
            ahead = branches.queue(tokens)
        for draft, reading in zip(drafts, branches.read(pending), strict=True):
            draft.grow(reading.without_thinking())
    return branches
