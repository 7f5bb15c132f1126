"""Branch points: several ways to go on are followed, compared, and one becomes the text.

What is here decides where there is a branch point, how far its rollouts are followed, and which of
them wins. It knows no MLX: an `Answer` asks for the rollouts' tokens, and all rollouts use the
randomness of the position they are at, so that a rollout is what would have been generated, had its
first token been drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING

from ..profiles.sections import Rollouts
from ..step import Branch, ChosenBy, Origin, Rollout, Step, Strategy
from .budget import Allowance
from .hooks import OnRollouts
from .reading import Reading
from .sentences import sentence_end

if TYPE_CHECKING:  # an answer is run without MLX, too
    from mlx_lm.tokenizer_utils import TokenizerWrapper


class Branching:
    """The branch points of one answer."""

    def __init__(
        self, rule: Rollouts, tokenizer: TokenizerWrapper, on_rollouts: OnRollouts | None = None
    ) -> None:
        """Set up.

        Args:
            rule: how far rollouts are followed, how they are compared, how often there are any.
            tokenizer: from `load`.
            on_rollouts: who is told while rollouts grow.
        """
        self._rule = rule
        self._tokenizer = tokenizer
        self._on_rollouts = on_rollouts
        self._allowance = Allowance(rule.max_branches, rule.min_gap)
        self._inside = False

    def width(self, index: int, reading: Reading) -> int:
        """Return how many ways to follow from a position: 1 where there is no branch point."""
        branches = reading.decision.strategy is Strategy.BRANCH
        if not branches or not self._allowance.allows(index):
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

    def begin(self, first: Sequence[Reading], before: Sequence[int], room: int) -> Drafts:
        """Return the rollouts of a branch point, with a first token each.

        Args:
            first: the position's reading with each of the first tokens.
            before: the last tokens of the text, by which a number or a word may begin.
            room: the tokens that the context still holds. `max_tokens` is ignored on purpose, so
                that a short answer is the beginning of a long one.
        """
        ends = _Ends(self._tokenizer, before)
        return Drafts(first, self._rule, ends, min(self._rule.depth, room))

    def tell(self, index: int, drafts: Drafts) -> None:
        """Tell a listener how far the rollouts have grown."""
        if self._on_rollouts is not None:
            self._on_rollouts(index, drafts.compare())


class Drafts:
    """The rollouts of one branch point while they grow, and their comparison."""

    def __init__(self, first: Sequence[Reading], rule: Rollouts, ends: _Ends, depth: int) -> None:
        """Begin one rollout for each first token; none grows beyond `depth` tokens."""
        self.all = [Draft(reading, ends.length) for reading in first]
        self._rule = rule
        self._ends = ends
        self._depth = depth
        self._length = 1

    @property
    def living(self) -> tuple[int, ...]:
        """The numbers of the rollouts that have not ended."""
        return tuple(number for number, draft in enumerate(self.all) if not draft.ended)

    @property
    def growing(self) -> bool:
        """Whether any rollout may still grow."""
        return self._length < self._depth and bool(self.living)

    @property
    def at_last(self) -> bool:
        """Whether the next token of each rollout is its last, for the depth allows no more."""
        return self._length + 1 == self._depth

    def readings(self, rollout: int) -> list[Reading]:
        """Return the positions of a rollout so far."""
        return self.all[rollout].readings

    def grow(self, readings: Sequence[Reading]) -> None:
        """Add a token to each of the living rollouts."""
        for number, reading in zip(self.living, readings, strict=True):
            self.all[number].grow(reading)
        self._length += 1

    def compare(self) -> Branch:
        """Return what the rollouts amount to; another than the first must lead by the margin."""
        rollouts = tuple(self._score(draft.readings) for draft in self.all)
        best = max(range(len(rollouts)), key=lambda number: rollouts[number].score)
        leads = rollouts[best].score - rollouts[0].score > self._rule.margin
        return Branch(rollouts, winner=best if leads else 0)

    def close(self, branch: Branch) -> bool:
        """Tell whether the scores of the two best hardly tell them apart, but their texts do."""
        best, second = sorted(branch.rollouts, key=lambda rollout: rollout.score, reverse=True)[:2]
        return best.score - second.score <= self._rule.ask_margin and best.text != second.text

    def _score(self, readings: Sequence[Reading]) -> Rollout:
        tokens = [reading.token for reading in readings]
        mean_logprob = fmean(reading.logprob for reading in readings)
        mean_entropy = fmean(reading.decision.metrics.entropy for reading in readings)
        return Rollout(
            tokens=tuple(tokens),
            text=self._ends.text(tokens),
            score=mean_logprob - self._rule.entropy_weight * mean_entropy,
            mean_logprob=mean_logprob,
            mean_entropy=mean_entropy,
            first_logprob=readings[0].logprob,
        )


def chosen(branch: Branch, rollout: int) -> Branch:
    """Return the record of a branch point whose winner a person chose.

    Raises:
        ValueError: there is no such rollout.
    """
    if not 0 <= rollout < len(branch.rollouts):
        raise ValueError(f"choose() must return an index of a rollout, not {rollout!r}")
    return replace(branch, winner=rollout, chosen_by=ChosenBy.USER)


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
        self._end = end
        self.grow(first)

    @property
    def tokens(self) -> list[int]:
        """The token ids so far."""
        return [reading.token for reading in self.readings]

    def grow(self, reading: Reading) -> None:
        """Add a token; then see whether the rollout ends, perhaps some tokens earlier."""
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
