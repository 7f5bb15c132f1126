"""What an inserted text does: an answer with it, against the same answer without it.

The control is at the same place of the same answer with the same seed. What is compared are the
tokens after the place: their mean log probability and their mean entropy, on both sides those of
the model at temperature 1. Both differences tell how well the model can go on, each with errors of
its own; their mean is the *effect*.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import fmean
from typing import NamedTuple

from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..decoding.job import Job, begin, prepare
from ..decoding.placement import Ground, written
from ..decoding.prose import ALLOWED, Place
from ..decoding.row import Row
from ..decoding.scheduler import Scheduler
from ..decoding.text import Text
from ..decoding.thinking import flaw, to_tokens
from ..models.base import LanguageModel
from ..policies.policy import Policy
from ..settings import BATCH
from ..step import Step

FOLLOWING = 20
"""Tokens after a place that are compared."""
LEAST_FOLLOWING = 8
"""An answer that ends sooner after a place tells too little there."""


@dataclass(frozen=True)
class Spot:
    """A place in an answer where nothing was inserted."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    """The tokens of the answer before the place."""
    seed: int
    place: Place
    paragraph: str
    control: Stretch
    """How the answer went on."""


class Stretch(NamedTuple):
    """Some tokens of an answer."""

    logprob: float
    """Mean, in nats."""
    entropy: float
    """Mean, in nats."""

    @classmethod
    def of(cls, steps: Sequence[Step]) -> Stretch:
        """Return the means of some steps."""
        return cls(
            fmean(step.logprob for step in steps),
            fmean(step.entropy for step in steps) * math.log(2),
        )


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


def spots(
    tokenizer: TokenizerWrapper, prompt: Sequence[int], steps: Sequence[Step], seed: int
) -> Iterator[Spot]:
    """Yield the places of an answer at which a thought could stand, wished for or not."""
    ground = Ground(tokenizer)
    for number, step in enumerate(steps):
        place = ground.place(step.token) if number else None
        control = steps[number : number + FOLLOWING]
        if place in ALLOWED["sentence"] and place and len(control) >= LEAST_FOLLOWING:
            before = tuple(one.token for one in steps[:number])
            stretch = Stretch.of(control)
            yield Spot(tuple(prompt), before, seed, place, ground.paragraph, stretch)
        ground.observe(step)


class Trials:
    """Tries texts at spots."""

    def __init__(self, model: LanguageModel, tokenizer: TokenizerWrapper, policy: Policy) -> None:
        """Set up.

        Args:
            model: from `load`.
            tokenizer: from `load`.
            policy: how to go on; its own interventions must be off.
        """
        self._model = model
        self._tokenizer = tokenizer
        self._policy = policy

    def run(
        self,
        asked: Sequence[tuple[Spot, str | int]],
        on_effect: Callable[[int, Effect], None],
    ) -> None:
        """Try each text at its spot; report every effect with the number of what was asked."""
        scheduler = Scheduler(self._model, steady=True)
        waiting = iter(self._rows(asked))
        running: dict[Row, tuple[int, list[Step]]] = {}
        while True:
            for row, number in islice(waiting, BATCH - len(running)):
                running[row] = (number, [])
                scheduler.add(row)
            if not running:
                return
            for row, step in scheduler.advance():
                running[row][1].append(step)
            for row in [row for row in running if row.ended]:
                number, steps = running.pop(row)
                if row.error is not None:
                    raise row.error
                on_effect(number, self._effect(*asked[number], steps))

    def _rows(self, asked: Sequence[tuple[Spot, str | int]]) -> Iterator[tuple[Row, int]]:
        """Yield the answer of each trial; those that follow one another share their prompt."""
        prompt, of_spot = None, None
        for number, (spot, text) in enumerate(asked):
            tokens = self._tokens(spot, text)
            job = Job(
                (*spot.prompt, *spot.answer),
                self._policy,
                spot.seed,
                max_tokens=len(tokens) + FOLLOWING,
                forced=tokens,
            )
            if of_spot is not spot:
                of_spot, prompt = (
                    spot,
                    prepare(self._model, Text.empty(self._model), job, shared=True),
                )
            row = begin(self._model, self._tokenizer, job, prompt) if prompt else None
            if row is not None:
                yield row, number

    def _tokens(self, spot: Spot, text: str | int) -> tuple[int, ...]:
        form = written(text, spot.place, spot.paragraph) if isinstance(text, str) else text
        return to_tokens(form, self._tokenizer, self._model.config.vocab_size)

    def _effect(self, spot: Spot, text: str | int, steps: Sequence[Step]) -> Effect:
        inserted = self._tokens(spot, text)
        tokens = [step.token for step in steps]
        after = steps[len(inserted) :]
        rule = self._policy.think
        watched = tokens[len(inserted) :][: rule.watch]
        found = flaw(self._tokenizer, spot.answer, inserted, watched, rule.loop_length)
        if found is not None or not after:
            return Effect(0.0, 0.0, dropped=True)
        treated = Stretch.of(after)
        return Effect(
            treated.logprob - spot.control.logprob,
            treated.entropy - spot.control.entropy,
            dropped=False,
        )
