"""Which of several answers to a prompt is chosen, and when no more of them are needed.

    answers  1  ■■■■■■■|                      the first, by the sampler that is set
             2          ■■■■■■|               only behind a first one that is unsure, or always 3
             ■■■■■■■■|             complete: it may be chosen 4          ■■■×                  its
             lowest group is worse than the best answer's: ended

The score of an answer is the lowest mean log p of three tokens in a row. It can only fall while an
answer grows, so an answer that has fallen behind is ended. The same score of the first answer is
the gate of ``auto``. The largest entropy tells hard questions from easy ones, but not the answers
to one question apart, and is no such score.

With `vote`, answers that say the same (`short_texts.comparable`) are counted, and the best of the
largest group is chosen. The vote ends when the other answers cannot change it, or hardly would:
when the probability that the leader, with `a` votes against `b` for the second, has the majority of
all votes to come, which is Beta(a + 1, b + 1), reaches `posterior`.

The first answer is never ended before its time: it may be shown while it comes.

Where the branches of forks are answers (`tree.py`), others can begin when those before them are
complete. So they come in rounds, half of those that may still come in each: what the answers of a
round open takes part in the next one.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from statistics import fmean
from typing import Any, NamedTuple

from ..profiles.confidence import GROUP, AnswerMetrics, score_of
from ..profiles.sections import MODE_TEXT, VOTE, AnswersRule, ForkRule
from ..step import NOT_OF_THE_MODEL, Step
from ..summary import forward_tokens
from .short_texts import comparable
from .tree import TreeLeaf, in_order, leaves_of

SCORE = "lowest_logprob"
AGREEMENT, TOKENS = "agreement", "tokens"
"""What the confidence in a chosen answer rests on."""
SCORES_OF_ANSWERS = {
    "agreement": (
        "share of the complete answers that say what the chosen one says",
        "self-consistency (2203.11171)",
    ),
    "semantic_entropy": (
        "−Σ share · ln share, over groups of complete answers that say the same; nats",
        "discrete semantic entropy (2302.09664), here by equal short texts",
    ),
}
"""By name: formula and source of the scores that several answers to one prompt have."""


class Enough(StrEnum):
    """Why no more answers were drawn, or awaited."""

    SURE = "sure"  # the first one reached the gate
    ALL = "all"  # all came to their ends
    DECIDED = "decided"  # nothing that came after could change the choice, or hardly would
    INTERRUPTED = "interrupted"


class Candidate:
    """One of several answers to a prompt, as far as it has come."""

    def __init__(self, number: int, seed: int) -> None:
        self.number = number
        self.seed = seed
        self.leaf: TreeLeaf | None = None
        """Where it begins, if that is inside another answer."""
        self.steps: list[Step] = []
        """All of them, those included that it shares with another answer."""
        self.shared = 0
        self.ended = False
        """Whether nothing comes after the last step."""
        self.bound = math.inf
        """What its score may still become."""
        self._group: list[float] = []
        self._said: str | None = None

    def begin(self, leaf: TreeLeaf, steps: Sequence[Step]) -> None:
        """Begin inside another answer, whose steps are given."""
        self.leaf, self.shared = leaf, leaf.place
        for step in steps[: leaf.place]:
            self.add(step)

    def add(self, step: Step) -> None:
        self.steps.append(step)
        if step.origin not in NOT_OF_THE_MODEL:
            self.bound = self.bound_with(step.logprob)
            self._group = self._with(step.logprob)

    def bound_with(self, logprob: float) -> float:
        """Return the bound behind another token."""
        group = self._with(logprob)
        return min(self.bound, fmean(group)) if len(group) == GROUP else self.bound

    def leaves(self, rule: ForkRule, seed: int) -> Iterator[TreeLeaf]:
        begun = 0 if self.leaf is None else self.leaf.place + 1
        return leaves_of(self.number, self.steps, begun, rule, seed)

    def _with(self, logprob: float) -> list[float]:
        return [*self._group[1 - GROUP :], logprob]

    @property
    def score(self) -> float:
        """`SCORE` of the tokens so far; of fewer than a group, their mean."""
        if len(self._group) == GROUP:
            return self.bound
        return fmean(self._group) if self._group else -math.inf

    @property
    def text(self) -> str:
        return "".join(step.text for step in self.steps)

    @property
    def said(self) -> str:
        """What a complete answer says, in a form that is equal for answers that say the same."""
        if self._said is None:
            found = comparable(self.text)
            self._said = f"only number {self.number}" if found is None else found
        return self._said

    @property
    def complete(self) -> bool:
        return bool(self.steps and self.steps[-1].finish_reason)

    @property
    def forward_tokens(self) -> int:
        """Tokens that went through the model for it; one was under way where it was ended."""
        own = self.steps[self.shared :]
        return sum(forward_tokens(own)) + (bool(own) and not self.complete)

    def to_dict(self) -> dict[str, Any]:
        begins = {} if self.leaf is None else {"begins": self.leaf._asdict()}
        return begins | {
            "text": self.text,
            "seed": self.seed,
            "tokens": len(self.steps),
            "token_ids": [step.token for step in self.steps],
            "forward_tokens": self.forward_tokens,
            "score": self.score if math.isfinite(self.score) else None,
            "complete": self.complete,
        }


class AnswersStanding(NamedTuple):
    """How several answers stand, and the confidence in the chosen one."""

    drawn: int
    complete: int
    agreeing: int
    """Complete answers that say what the chosen one says, itself included."""
    confidence: float
    rests_on: str
    """`AGREEMENT`: the share of the complete answers that agree. `TOKENS`: the geometric mean of
    the probabilities of the chosen answer's tokens."""

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> AnswersStanding:
        """Read it from `AnswerSelection.to_dict`."""
        return cls(
            drawn=len(record["answers"]),
            complete=int(record["complete"]),
            agreeing=int(record["agreeing"]),
            confidence=float(record["confidence"]),
            rests_on=str(record["rests_on"]),
        )

    @property
    def counts(self) -> str:
        if self.drawn == 1:
            return "1 answer"
        agree = f", {self.agreeing} agree" if self.agreeing > 1 else ""
        return f"{self.complete} of {self.drawn} answers complete{agree}"

    @property
    def basis(self) -> str:
        agreed = self.rests_on == AGREEMENT
        rests_on = f"{self.agreeing} of {self.complete} agree" if agreed else "mean of its tokens"
        return f"confidence {self.confidence:.0%} ({rests_on})"


class AnswerSelection:
    """The answers to one prompt: how many of them are needed, and which is chosen.

    It can be asked at any moment which one is chosen, also behind an interrupt: one of those that
    are complete, or else the first.
    """

    def __init__(
        self, rule: AnswersRule, answers: int | str, seed: int, forks: ForkRule | None = None
    ) -> None:
        """Begin with the first answer; with a number, and without a tree, also with the others.

        Args:
            rule: of the profile.
            answers: a number, or ``"auto"``.
            seed: of the first answer; those of the others are derived from it.
            forks: where its branches are answers, these are the others, with the same seed.
        """
        self._rule = rule
        self._gated = not isinstance(answers, int)
        self._most = answers if isinstance(answers, int) else rule.count
        self._forks = forks if forks is not None and forks.mode != MODE_TEXT else None
        self._decided = False
        self.candidates = [Candidate(0, seed)]
        if not self._gated and self._forks is None:
            self._draw()

    @property
    def done(self) -> bool:
        return all(candidate.ended for candidate in self.candidates)

    def proceed(self) -> list[Candidate]:
        """Draw what is needed, and return the answers that are to end now."""
        first = self.candidates[0]
        if len(self.candidates) == 1:
            if first.ended and first.complete and not self._sure:
                self._draw()
            return []
        if self._forks is not None and self.done and first.complete:
            self._draw()
        behind = self._behind([c for c in self.candidates[1:] if not c.ended])
        self._decided |= bool(behind)
        return behind

    @property
    def complete(self) -> list[Candidate]:
        return [candidate for candidate in self.candidates if candidate.complete]

    @property
    def agreeing(self) -> list[Candidate]:
        """The complete answers that say what the chosen one says, itself included."""
        return [one for one in self.complete if one.said == self.chosen.said]

    @property
    def chosen(self) -> Candidate:
        among = self.complete
        if self._rule.selection == VOTE:
            among = max(self._votes(), key=_standing, default=among)
        return max(among, key=lambda one: one.score, default=self.candidates[0])

    @property
    def forward_tokens(self) -> int:
        """Of all answers, those included that were not chosen, or not completed."""
        return sum(candidate.forward_tokens for candidate in self.candidates)

    @property
    def stopped(self) -> Enough:
        if self._decided:
            return Enough.DECIDED
        if len(self.complete) < len(self.candidates):
            return Enough.INTERRUPTED
        return Enough.SURE if self._sure else Enough.ALL

    def to_dict(self) -> dict[str, Any]:
        return {
            "answers": [candidate.to_dict() for candidate in self.candidates],
            "chosen": self.candidates.index(self.chosen),
            "selection": self._rule.selection,
            "stopped": str(self.stopped),
            "scores": self.scores,
            "forward_tokens": self.forward_tokens,
            **{name: value for name, value in self.standing._asdict().items() if name != "drawn"},
        }

    @property
    def standing(self) -> AnswersStanding:
        voted = self._rule.selection == VOTE and len(self.complete) > 1
        own = math.exp(score_of("mean_logprob", AnswerMetrics.of(self.chosen.steps)))
        agreeing, complete = len(self.agreeing), len(self.complete)
        return AnswersStanding(
            drawn=len(self.candidates),
            complete=complete,
            agreeing=agreeing,
            confidence=agreeing / complete if voted else own,
            rests_on=AGREEMENT if voted else TOKENS,
        )

    @property
    def scores(self) -> dict[str, float]:
        """Of `SCORES_OF_ANSWERS`, those that are known: none without two complete answers."""
        complete = self.complete
        if len(complete) < 2:
            return {}
        shares = [count / len(complete) for count in Counter(c.said for c in complete).values()]
        entropy = -math.fsum(share * math.log(share) for share in shares)
        # −1 · ln 1 is −0.0
        return {"agreement": len(self.agreeing) / len(complete), "semantic_entropy": abs(entropy)}

    def __str__(self) -> str:
        if self.stopped is Enough.SURE:
            return "1 answer, which is sure"
        chosen = self.chosen
        return (
            f"{len(self.agreeing)} of {len(self.complete)} complete answers agree,"
            f" {len(self.candidates)} were drawn; number {self.candidates.index(chosen) + 1} was"
            f" chosen ({SCORE} {chosen.score:.2f}); {self.forward_tokens} forward tokens in all"
        )

    @property
    def _sure(self) -> bool:
        return self._gated and self.candidates[0].score >= self._rule.threshold

    def _draw(self) -> None:
        seed = self.candidates[0].seed
        if self._forks is None:
            self.candidates += [Candidate(n, derived(seed, n)) for n in range(1, self._most)]
        elif not (self._rule.selection == VOTE and self._settled()):
            self._draw_branches(self._forks)

    def _draw_branches(self, forks: ForkRule) -> None:
        """Begin half of the answers that may still come, where none began and one may win."""
        first, best = self.candidates[0], self._best_score
        begun = {candidate.leaf for candidate in self.candidates}
        leaves = [leaf for one in self.complete for leaf in one.leaves(forks, first.seed)]
        round_ends = len(self.candidates) + math.ceil((self._most - len(self.candidates)) / 2)
        for leaf in in_order(leaves, forks):
            if len(self.candidates) == round_ends:
                return
            other = Candidate(len(self.candidates), first.seed)
            other.begin(leaf, self.candidates[leaf.answer].steps)
            if leaf not in begun and other.bound_with(leaf.logprob) > best:
                self.candidates.append(other)

    def _behind(self, running: list[Candidate]) -> list[Candidate]:
        """Return those of some answers on which the choice does not depend any more."""
        if self._rule.selection == VOTE:
            return running if self._settled() else []
        best = self._best_score
        return [candidate for candidate in running if candidate.bound <= best]

    @property
    def _best_score(self) -> float:
        """What an answer must exceed to be chosen; a vote is open to all."""
        if self._rule.selection == VOTE:
            return -math.inf
        return max((one.score for one in self.complete), default=-math.inf)

    def _settled(self) -> bool:
        votes = sorted(map(len, self._votes()), reverse=True)
        first, second = (*votes, 0, 0)[:2]
        coming = sum(not candidate.ended for candidate in self.candidates)
        if self._forks is not None:
            coming += self._most - len(self.candidates)
        return first > second + coming or leads(first, second) >= self._rule.posterior

    def _votes(self) -> list[list[Candidate]]:
        """Return the complete answers in groups that say the same; silence has no vote."""
        groups: dict[str, list[Candidate]] = {}
        for candidate in self.complete:
            if candidate.said:
                groups.setdefault(candidate.said, []).append(candidate)
        return list(groups.values())


def _standing(group: Sequence[Candidate]) -> tuple[int, float]:
    return len(group), max(candidate.score for candidate in group)


def leads(first: int, second: int) -> float:
    """Return the probability that a leader has the majority of all votes to come, with so many
    votes for it and for the second: P(x > 1/2) for x ~ Beta(first + 1, second + 1)."""
    # The tail of a binomial distribution: exact, and without a library.
    total = first + second + 1
    return float(sum(math.comb(total, wins) for wins in range(first + 1)) / 2**total)


def derived(seed: int, number: int) -> int:
    """Return the seed of another answer: none that other answers of a batch count up to."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{number}".encode()).digest()[:4], "big")
