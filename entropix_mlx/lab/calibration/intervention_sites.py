"""Where an intervention took place, or could have, and what it gained and cost there.

An event is one place in an answer. Its gain is in nats: the log probability of the tokens that
follow with the intervention, less that of those without it. Its cost are forward tokens that were
discarded. `worth` puts a threshold where the events beyond it gain most in sum, at a price.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np

from ...answer.continuation import Stretch
from ...profiles.profile import Profile
from ...profiles.tree import classify
from ...step import Strategy
from ..ask_model import Answered, Asker
from ..evaluation.records import forward_tokens
from ..evaluation.statistics import bootstrap_mean
from .insertions import FOLLOWING, LEAST_FOLLOWING
from .interventions import RESAMPLE, only, sampler
from .measurements import DIGITS, mean_and_interval

MOST_RESAMPLED = 64
"""Places at which resampling is tried, if there are so many."""
LEAST_EVENTS = 10
"""Beyond a threshold; of fewer nothing can be said."""


@dataclass(frozen=True)
class Event:
    """What an intervention did at one place."""

    measured: float
    """What its threshold is about: the intervention is where that is higher."""
    gain: float
    """Nats."""
    cost: float
    """Forward tokens."""
    kind: str = ""
    """Of the text: code, maths or prose; empty if unknown."""


@dataclass(frozen=True)
class Worth:
    """A threshold, and the events that speak for it."""

    threshold: float
    """Infinite where the intervention is not worth its price anywhere."""
    price: float
    """Nats that a forward token must gain."""
    kept: tuple[Event, ...]
    """The events beyond the threshold."""
    given_up: tuple[Event, ...]
    """The others that the share of `[targets]` would have allowed."""

    def record(self) -> dict[str, Any]:
        """Return the figures for a profile's record."""
        kinds = dict.fromkeys(event.kind for event in (*self.kept, *self.given_up) if event.kind)
        return {
            "kept": self._figures(self.kept),
            "given_up": self._figures(self.given_up),
            "kinds": {
                kind: self._figures([event for event in self.kept if event.kind == kind])
                for kind in kinds
            },
        }

    def _figures(self, events: Sequence[Event]) -> dict[str, Any]:
        if not events:
            return {"n": 0}
        gains = [event.gain for event in events]
        net = [event.gain - self.price * event.cost for event in events]
        return {
            "n": len(events),
            "cost": round(fmean(event.cost for event in events), DIGITS),
            "gain": mean_and_interval(gains),
            "net": mean_and_interval(net),
        }


def worth(events: Sequence[Event], price: float, loosest: float) -> Worth:
    """Return the threshold beyond which the sum of gain − price · cost is largest.

    Where fewer than `LEAST_EVENTS` lie beyond it, or the 95 % bootstrap interval of their mean does
    not lie above 0, it is infinite.

    Args:
        events: what the intervention did at some places.
        price: nats that a forward token must gain.
        loosest: the threshold is at least this.
    """
    ordered = sorted(
        (event for event in events if event.measured > loosest),
        key=lambda event: event.measured,
        reverse=True,
    )
    values = [event.measured for event in ordered] + [loosest]
    net = np.cumsum([event.gain - price * event.cost for event in ordered])
    # A threshold can stand only between two places that differ in what is measured.
    ends = [n for n in range(LEAST_EVENTS, len(ordered) + 1) if values[n - 1] > values[n]]
    best = max(ends, key=lambda n: net[n - 1], default=0)
    of_each = [event.gain - price * event.cost for event in ordered[:best]]
    if not best or bootstrap_mean(of_each).low <= 0:  # it may be chance
        return Worth(math.inf, price, (), tuple(ordered))
    threshold = loosest if best == len(ordered) else (values[best - 1] + values[best]) / 2
    return Worth(threshold, price, tuple(ordered[:best]), tuple(ordered[best:]))


def forks(answers: Sequence[Answered], kinds: Mapping[str, str]) -> list[Event]:
    """Return the forks of some answers, by varentropy.

    The gain is the lead of the way that was chosen over the first one, times the tokens that both
    have: 0 where the first one stays.
    """
    found = []
    for answer in answers:
        for place, step in enumerate(answer.steps):
            if step.fork is None:
                continue
            first, winner = step.fork.branches[0], step.fork.branches[step.fork.winner]
            compared = min(len(first.tokens), len(winner.tokens))
            _, cost = forward_tokens(answer.steps[place : place + len(winner.tokens)])
            kind = kinds.get(answer.asked, "")
            found.append(Event(step.varentropy, (winner.lead or 0.0) * compared, cost, kind))
    return found


def resamples(
    asker: Asker,
    control: Sequence[Answered],
    profile: Profile,
    bare: Profile,
    kinds: Mapping[str, str],
) -> list[Event]:
    """Return what resampling does, by varentropy, at places of answers without interventions.

    A token is drawn there with the parameters of `resample` and the same seed. From it the answer
    goes on without interventions, and is compared with what stood there: the difference of the mean
    log p of up to `FOLLOWING` tokens, the drawn one among them, times their number. Where the same
    token is drawn, nothing changes.

    Args:
        asker: goes on from the places.
        control: the answers.
        profile: says where there may be resampling.
        bare: what the control was answered with.
        kinds: of the texts that prompts ask for.
    """
    places = [
        (answer, number)
        for answer in control
        for number, strategy in enumerate(classify(answer.steps, profile))
        if strategy is Strategy.RESAMPLE and len(answer.steps) - number >= LEAST_FOLLOWING
    ]
    order = np.random.default_rng(abs(asker.seed)).permutation(len(places))[:MOST_RESAMPLED]
    chosen = [places[number] for number in sorted(order)]
    asker.progress.expect(len(chosen))
    drawing, going_on = sampler(only(profile, RESAMPLE)), sampler(bare)
    drawn = asker.run("drawn", [answer.going_on(n, drawing, 1) for answer, n in chosen])
    tokens = [steps[0].token for steps in drawn]
    others = [
        place
        for place, (answer, number) in enumerate(chosen)
        if tokens[place] != answer.steps[number].token
    ]
    asker.progress.expect(len(others))
    jobs = []
    for place in others:
        answer, number = chosen[place]
        job = answer.going_on(number, going_on, FOLLOWING)
        jobs.append(replace(job, forced=(tokens[place],)))
    gains = dict.fromkeys(range(len(chosen)), 0.0)
    for place, steps in zip(others, asker.run("resampled", jobs), strict=True):
        answer, number = chosen[place]
        stood = answer.steps[number : number + FOLLOWING]
        gains[place] = len(stood) * (Stretch.of(steps).logprob - Stretch.of(stood).logprob)
    return [
        Event(answer.steps[number].varentropy, gains[place], 0.0, kinds.get(answer.asked, ""))
        for place, (answer, number) in enumerate(chosen)
    ]
