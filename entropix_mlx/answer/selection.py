"""Which of several answers to a question is taken, and when no more of them are needed.

    answers  1  ■■■■■■■|                      the first, by the sampler that is set
             2          ■■■■■■|               only behind a first one that is unsure, or always
             3          ■■■■■■■■|             complete: it may be chosen
             4          ■■■×                  its worst group is worse than the best answer's: ended

With `best`, the answer with the highest score is taken: the lowest mean log p of three tokens in a
row, which can only fall while an answer grows, so that one that has fallen behind is ended; or the
mean log p. The largest entropy tells hard questions from easy ones, but not the answers to one
question apart, and is no such score.

With `vote`, answers that say the same (`short_texts.comparable`) are counted, and the best of the
largest group is taken. The vote ends when the other answers cannot change it, or hardly would: with
`a` votes for the leader and `b` for the second, when the probability that the leader has the
majority of all votes to come, which is Beta(a + 1, b + 1), reaches `posterior`.

The first answer is never ended before its time: it is shown while it comes.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from ..profiles.confidence import GROUP, AnswerMetrics, lowest_group, score_of
from ..profiles.sections import VOTE, AnswersRule
from ..step import NOT_OF_THE_MODEL, Step
from ..summary import forward_tokens
from .short_texts import comparable


class Enough(StrEnum):
    """Why no more answers were drawn, or awaited."""

    SURE = "sure"  # the first one reached the gate
    ALL = "all"  # all came to their ends
    DECIDED = "decided"  # nothing that came after could change the choice, or hardly would
    INTERRUPTED = "interrupted"


class RestsOn(StrEnum):
    """What the confidence in a choice is computed from."""

    TOKENS = "tokens"  # geometric mean of the probabilities of the chosen answer's own tokens
    AGREEMENT = "agreement"  # share of the complete answers that say what the chosen one says


@dataclass
class Candidate:
    """One of several answers to a question, as far as it has come."""

    seed: int
    steps: list[Step] = field(default_factory=list)
    ended: bool = False
    """Whether nothing comes after the last step."""
    _own: list[float] = field(default_factory=list)
    _lowest: float = math.inf

    def add(self, step: Step) -> None:
        self.steps.append(step)
        if step.origin not in NOT_OF_THE_MODEL:
            self._own = [*self._own[1 - GROUP :], step.logprob]
        if len(self._own) == GROUP:
            self._lowest = min(self._lowest, lowest_group(self._own))

    @property
    def text(self) -> str:
        return "".join(step.text for step in self.steps)

    @property
    def complete(self) -> bool:
        return bool(self.steps and self.steps[-1].finish_reason)

    @property
    def metrics(self) -> AnswerMetrics:
        return AnswerMetrics.of(self.steps)

    @property
    def forward_tokens(self) -> int:
        """Tokens that went through the model for it; one was under way where it was ended."""
        return sum(forward_tokens(self.steps)) + (bool(self.steps) and not self.complete)

    def at_most(self, score: str) -> float:
        """Return what a score can still be when the answer is complete."""
        return self._lowest if score == "lowest_logprob" else math.inf


@dataclass(frozen=True)
class OneOfSeveral:
    """One of the answers of a `AnswerChoice`."""

    text: str
    seed: int
    tokens: int
    forward_tokens: int
    score: float | None
    """None where it has no token of the model's."""
    complete: bool
    """Whether it came to its own end; otherwise it could not be chosen."""


@dataclass(frozen=True)
class AnswerChoice:
    """The answers to one question, and which of them is taken."""

    answers: tuple[OneOfSeveral, ...]
    chosen: int
    stopped: Enough
    selection: str
    score: str
    agreeing: int
    """Complete answers that say what the chosen one says, itself included."""
    complete: int
    forward_tokens: int
    """Of all answers, those included that were not taken, or not completed."""
    confidence: float
    rests_on: RestsOn

    @property
    def text(self) -> str:
        return self.answers[self.chosen].text

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        if self.stopped is Enough.SURE:
            return "1 answer, which is sure"
        score = self.answers[self.chosen].score
        scored = "" if score is None else f" ({self.score} {score:.2f})"
        return (
            f"{self.agreeing} of {self.complete} complete answers agree, {len(self.answers)} were"
            f" drawn; number {self.chosen + 1} was chosen{scored}; {self.forward_tokens} forward"
            " tokens in all"
        )


class AnswerSelection:
    """The answers to one question, how many of them are needed, and which is taken."""

    def __init__(self, rule: AnswersRule, answers: int | str, seed: int) -> None:
        """Begin with the first answer; with a number, also with the others.

        Args:
            rule: of the profile.
            answers: a number, or ``"auto"``.
            seed: of the first answer; those of the others are derived from it.
        """
        self._rule = rule
        self._gated = not isinstance(answers, int)
        self.most = most_answers(rule, answers)
        self._behind: set[int] = set()
        self._scores: dict[int, float] = {}
        self._said: dict[int, str | None] = {}
        self.candidates = [Candidate(seed)]
        if not self._gated:
            self._draw()

    @property
    def done(self) -> bool:
        return all(candidate.ended for candidate in self.candidates)

    def proceed(self) -> list[int]:
        """Draw what is needed, and return the numbers of the answers that are to end now."""
        first, drawn = self.candidates[0], len(self.candidates)
        if self._gated and first.ended and first.complete and drawn == 1:
            if self._rule.opens(first.metrics):
                self._draw()
            return []
        running = [number for number in range(1, drawn) if not self.candidates[number].ended]
        behind = self._decided(running)
        self._behind.update(behind)
        return behind

    def choice(self) -> AnswerChoice:
        """Return which answer is taken, of those that are complete by now."""
        rule = self._rule
        votes = self._votes()
        voting = rule.selection == VOTE
        complete = [n for n, candidate in enumerate(self.candidates) if candidate.complete]
        among = max(votes, key=self._standing, default=complete) if voting else complete
        chosen = max(among, key=self._score, default=0)
        agreeing = next((len(group) for group in votes if chosen in group), len(complete[:1]))
        by_vote = voting and len(complete) > 1
        tokens = score_of("mean_logprob", self.candidates[chosen].metrics)
        return AnswerChoice(
            answers=tuple(self._record(number) for number in range(len(self.candidates))),
            chosen=chosen,
            stopped=self._stopped(),
            selection=rule.selection,
            score=rule.score,
            agreeing=agreeing,
            complete=len(complete),
            forward_tokens=sum(candidate.forward_tokens for candidate in self.candidates),
            confidence=agreeing / len(complete) if by_vote else math.exp(tokens),
            rests_on=RestsOn.AGREEMENT if by_vote else RestsOn.TOKENS,
        )

    def _draw(self) -> None:
        seed = self.candidates[0].seed
        self.candidates += [Candidate(derived(seed, n)) for n in range(1, self.most)]

    def _decided(self, running: list[int]) -> list[int]:
        """Return those of some answers on which the choice does not depend any more."""
        if self._rule.selection == VOTE:
            return running if self._settled() else []
        complete = (n for n, candidate in enumerate(self.candidates) if candidate.complete)
        best = max(map(self._score, complete), default=-math.inf)
        return [n for n in running if self.candidates[n].at_most(self._rule.score) <= best]

    def _settled(self) -> bool:
        votes = sorted(map(len, self._votes()), reverse=True)
        first, second = (*votes, 0, 0)[:2]
        running = sum(not candidate.ended for candidate in self.candidates)
        return first > second + running or leads(first, second) >= self._rule.posterior

    def _votes(self) -> list[list[int]]:
        """Return the complete answers in groups that say the same; silence has no vote."""
        groups: dict[str | int, list[int]] = {}
        for number, candidate in enumerate(self.candidates):
            if candidate.complete and number not in self._said:
                self._said[number] = comparable(candidate.text)
            said = self._said.get(number, "")
            if said != "":
                groups.setdefault(number if said is None else said, []).append(number)
        return list(groups.values())

    def _score(self, number: int) -> float:
        candidate = self.candidates[number]
        if number in self._scores:
            return self._scores[number]
        score = score_of(self._rule.score, candidate.metrics)
        if candidate.complete:
            self._scores[number] = score
        return score

    def _standing(self, group: Sequence[int]) -> tuple[int, float]:
        return len(group), max(map(self._score, group))

    def _stopped(self) -> Enough:
        if self._behind:
            return Enough.DECIDED
        if not all(candidate.complete for candidate in self.candidates):
            return Enough.INTERRUPTED
        alone = self._gated and len(self.candidates) == 1
        return Enough.SURE if alone else Enough.ALL

    def _record(self, number: int) -> OneOfSeveral:
        candidate, score = self.candidates[number], self._score(number)
        return OneOfSeveral(
            text=candidate.text,
            seed=candidate.seed,
            tokens=len(candidate.steps),
            forward_tokens=candidate.forward_tokens,
            score=score if math.isfinite(score) else None,
            complete=candidate.complete,
        )


def most_answers(rule: AnswersRule, answers: int | str) -> int:
    """Return how many answers a setting may mean."""
    return answers if isinstance(answers, int) else rule.count


def leads(first: int, second: int) -> float:
    """Return the probability that a leader has the majority of all votes to come, with so many
    votes for it and for the second: P(x > 1/2) for x ~ Beta(first + 1, second + 1)."""
    # The tail of a binomial distribution: exact, and without a library.
    total = first + second + 1
    return float(sum(math.comb(total, wins) for wins in range(first + 1)) / 2**total)


def derived(seed: int, number: int) -> int:
    """Return the seed of another answer: none that other answers of a batch count up to."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{number}".encode()).digest()[:4], "big")
