"""Fork points: several ways to go on are followed, compared, and one becomes the text.

What is here decides where there is a branch point; `drafts` says how far its rollouts are followed
and which of them wins. Neither knows MLX: an `Answer` asks for the rollouts' tokens, and all
rollouts use the randomness of the position they are at, so that a rollout is what would have been
generated, had its first token been drawn.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ...profiles.sections import NO_JUDGE, ForkRule
from ...step import (
    ChosenBy,
    Fork,
    Origin,
    Step,
)
from ..hooks import OnFork
from ..position import Reading
from .base import Allowance
from .branches import Drafts, Ends, Judge
from .comparison import Copies

if TYPE_CHECKING:  # an answer is run without MLX, too
    from mlx_lm.tokenizer_utils import TokenizerWrapper


class Branching:
    """The branch points of one answer.

    Raises:
        ProfileError: what the judge is to read or say has no tokens of its own.
    """

    def __init__(
        self,
        rule: ForkRule,
        tokenizer: TokenizerWrapper,
        on_fork: OnFork | None = None,
        *,
        seed: int = 0,
        prompt: Sequence[int] = (),
        stops: Sequence[str] = (),
    ) -> None:
        """Set up.

        Args:
            rule: where rollouts begin, how far they are followed, how they are compared.
            tokenizer: from `load`.
            on_fork: who is told while rollouts grow.
            seed: of the answer; what is left to chance depends on it and on the position alone.
            prompt: the tokens before the answer, which rollouts may copy.
            stops: strings that end the answer, and with it a rollout.
        """
        self._rule = rule
        self._tokenizer = tokenizer
        self._on_rollouts = on_fork
        self._seed = seed
        self._stops = tuple(stops)
        self._judge = None if rule.judge == NO_JUDGE else Judge.of(rule, tokenizer)
        self._copies = Copies(rule.copy_length)
        self._copies.follow(prompt)
        self._allowance = Allowance(rule.max_branches, rule.min_gap)
        self._inside = False

    def width(self, index: int, reading: Reading) -> int:
        """Return how many ways to follow from a position: 1 where there is no branch point."""
        if not self._allowance.allows(index):
            return 1
        if not self._rule.forks(reading.decision, _chance(self._seed, index)):
            return 1
        return self._rule.width_at(reading.decision.metrics.entropy)

    def observe(self, step: Step) -> None:
        """Count a step that was committed."""
        self._copies.follow([step.token])
        continues = self._inside and step.origin in (Origin.BRANCH, Origin.CHOSEN)
        self._inside = step.fork is not None or continues
        if step.fork is not None:
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
        ends = Ends(self._tokenizer, before, self._stops)
        side = 0 if self._judge is None else len(self._judge.question) + 1
        depth = max(1, min(self._rule.depth, room - side))
        return Drafts(first, self._rule, ends, depth, copies=self._copies, judge=self._judge)

    def tell(self, index: int, drafts: Drafts) -> None:
        """Tell a listener how far the rollouts have grown."""
        if self._on_rollouts is not None:
            self._on_rollouts(index, drafts.compare())


def chosen(fork: Fork, branch: int) -> Fork:
    """Return the record of a branch point whose winner a person chose.

    Raises:
        ValueError: there is no such rollout.
    """
    if not 0 <= branch < len(fork.branches):
        raise ValueError(f"choose() must return an index of a branch, not {branch!r}")
    return replace(fork, winner=branch, chosen_by=ChosenBy.USER)


def _chance(seed: int, index: int) -> float:
    """Return a number in [0, 1), a function of the seed and the position in the answer alone."""
    digest = hashlib.blake2b(f"{seed}:{index}:fork".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") / 2**32
