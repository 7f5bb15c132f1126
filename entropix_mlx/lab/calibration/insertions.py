"""What an inserted text does: an answer with it, against the same answer without it.

The control is at the same place of the same answer with the same seed. What is compared are the
tokens after the place: the *effect* is their gain, as `Stretch` defines it. Where the rule for
thoughts itself compares the first of these tokens, to keep only texts that gain there, these tell
nothing any more, and what is compared are the tokens behind them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from mlx_lm.tokenizer_utils import TokenizerWrapper

from ...answer.continuation import Stretch, gain
from ...answer.interventions.base import AnswerText
from ...answer.interventions.prose import ALLOWED, Place, asks_for
from ...answer.interventions.thinking import flaw, to_tokens, written
from ...profiles.sections import Think
from ...samplers.base import Sampler
from ...step import Step
from ..ask_model import Answered, Asker
from ..together import Task

FOLLOWING = 20
"""Tokens that are compared."""
LEAST_FOLLOWING = 8
"""An answer that ends sooner after a place tells too little there."""


@dataclass(frozen=True)
class Spot:
    """A place in an answer where nothing was inserted."""

    answer: Answered
    number: int
    """Of the step before which a text can stand."""
    place: Place
    paragraph: str

    @property
    def control(self) -> list[Step]:
        """How the answer went on."""
        return self.answer.steps[self.number :]

    @property
    def entropy(self) -> float:
        """Of the position, in bits."""
        return self.answer.steps[self.number].entropy

    @property
    def where(self) -> tuple[int, ...]:
        """All tokens before the place: two spots with other seeds may have these in common."""
        before = self.answer.steps[: self.number]
        return (*self.answer.prompt, *(step.token for step in before))


class Effect(NamedTuple):
    """What one insertion did, in nats a token; better is more, but for the entropy."""

    logprob: float
    entropy: float
    dropped: bool
    """Whether it would not have been kept: then it did nothing."""

    @property
    def total(self) -> float:
        """Return the mean of the gain of log p and of the loss of entropy."""
        return (self.logprob - self.entropy) / 2


def spots(tokenizer: TokenizerWrapper, answer: Answered, rule: Think) -> Iterator[Spot]:
    """Yield the places of an answer at which a thought could stand, wished for or not.

    Args:
        tokenizer: from `load`.
        answer: without thoughts.
        rule: what it must not answer if thoughts are to stand in it.
    """
    if asks_for(rule.not_for, tokenizer, answer.prompt):
        return
    ground = AnswerText(tokenizer)
    for number, step in enumerate(answer.steps):
        place = ground.place(step.token) if number else None
        enough = len(answer.steps) - number >= LEAST_FOLLOWING
        if place is not None and place in ALLOWED["sentence"] and enough:
            yield Spot(answer, number, place, ground.paragraph)
        ground.observe(step)


class Trials:
    """Tries texts at spots."""

    def __init__(self, asker: Asker, sampler: Sampler) -> None:
        """Set up.

        Args:
            asker: goes on from the spots.
            sampler: how to go on; its own interventions must be off.
        """
        self._asker = asker
        self._sampler = sampler
        rule = sampler.think
        self._decided = rule.watch if rule.least_gain > -math.inf else 0
        """Tokens after a text by which it is decided whether it gains."""

    @property
    def _length(self) -> int:
        return self._decided + FOLLOWING

    def tells(self, spot: Spot) -> bool:
        """Tell whether enough follows a spot behind the tokens that decide."""
        return len(spot.control) >= self._decided + LEAST_FOLLOWING

    def effects(self, stage: str, asked: Sequence[tuple[Spot, str | int]]) -> list[Effect]:
        """Return what texts do at spots.

        Args:
            stage: what the journal calls them.
            asked: pairs of a spot and a text.
        """
        jobs = [self._job(spot, self._tokens(spot, text)) for spot, text in asked]
        answers = self._asker.run(stage, jobs)
        return [
            self._effect(spot, self._tokens(spot, text), steps)
            for (spot, text), steps in zip(asked, answers, strict=True)
        ]

    def again(self, stage: str, found: Sequence[Spot], seed: int) -> list[Spot]:
        """Return the same places in answers that go on from there with other seeds.

        A way to go on after which the place is none any more, or that ends too soon, has no spot.

        Args:
            stage: what the journal calls these answers.
            found: the spots.
            seed: of the first of them; the others count on.
        """
        jobs = [
            spot.answer.going_on(spot.number, self._sampler, self._length, seed + number)
            for number, spot in enumerate(found)
        ]
        placed = []
        for spot, job, steps in zip(found, jobs, self._asker.run(stage, jobs), strict=True):
            kept = spot.answer.steps[: spot.number]
            other = replace(spot.answer, seed=job.settings.seed, steps=[*kept, *steps])
            there = spots(self._asker.tokenizer, other, self._sampler.think)
            placed += [one for one in there if one.where == spot.where and self.tells(one)]
        return placed

    def _job(self, spot: Spot, inserted: tuple[int, ...]) -> Task:
        job = spot.answer.going_on(spot.number, self._sampler, len(inserted) + self._length)
        return replace(job, forced=inserted)

    def _tokens(self, spot: Spot, text: str | int) -> tuple[int, ...]:
        form = written(text, spot.place, spot.paragraph) if isinstance(text, str) else text
        return to_tokens(form, self._asker.tokenizer, self._asker.model.config.vocab_size)

    def _effect(self, spot: Spot, inserted: tuple[int, ...], steps: Sequence[Step]) -> Effect:
        before = [step.token for step in spot.answer.steps[: spot.number]]
        after, control = steps[len(inserted) :], spot.control[: self._length]
        rule, decided = self._sampler.think, self._decided
        watched = [step.token for step in after][: rule.watch]
        found = flaw(self._asker.tokenizer, before, inserted, watched, rule.loop_length)
        gained = gain(after[:decided], control[:decided])
        treated, usual = after[decided:], control[decided:]
        worse = decided > 0 and gained < rule.least_gain
        if found is not None or worse or not treated or not usual:
            return Effect(0.0, 0.0, dropped=True)
        one, other = Stretch.of(treated), Stretch.of(usual)
        return Effect(one.logprob - other.logprob, one.entropy - other.entropy, dropped=False)
