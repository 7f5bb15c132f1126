"""Thresholds beyond which forks and resampling are worth their price, from their effects by place.

The effect of an intervention at a place is in nats: the log probability of the tokens that follow
with it, less that of those without it: at a fork, of those after the most probable token. Its cost
are forward tokens that were discarded. `worth` puts a threshold where the effects beyond it, less a
price, are largest in sum.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from ...answer.position import Stretch
from ...profiles.profile import Profile
from ...profiles.tree import classify
from ...samplers.registry import make_sampler
from ...step import Strategy
from ...summary import forward_tokens
from ..answering import Answered, Answerer
from ..evaluation.statistics import bootstrap_mean
from .ablation import RESAMPLE, only
from .measurements import DIGITS, mean_and_interval
from .thoughts import FOLLOWING, LEAST_FOLLOWING

MOST_RESAMPLED = 64
"""Places at which resampling is tried, if there are so many."""
LEAST_PLACES = 10
"""Beyond a threshold; of fewer nothing can be said."""


@dataclass(frozen=True)
class PlaceEffect:
    """The effect of an intervention at one place."""

    metric: float
    """The metric that its threshold is compared with."""
    effect: float
    """Nats."""
    cost: float
    """Forward tokens."""
    kind: str = ""
    """Of the text: code, maths or prose; empty if unknown."""


@dataclass(frozen=True)
class Worth:
    """A threshold, and the places behind it."""

    threshold: float
    """Infinite where the intervention is not worth its price anywhere."""
    price: float
    beyond: tuple[PlaceEffect, ...]
    below: tuple[PlaceEffect, ...]
    """The other places that the share of `[targets]` would have allowed."""

    def record(self) -> dict[str, Any]:
        kinds = dict.fromkeys(place.kind for place in (*self.beyond, *self.below) if place.kind)
        return {
            "beyond": self._figures(self.beyond),
            "below": self._figures(self.below),
            "kinds": {
                kind: self._figures([place for place in self.beyond if place.kind == kind])
                for kind in kinds
            },
        }

    def _figures(self, places: Sequence[PlaceEffect]) -> dict[str, Any]:
        if not places:
            return {"n": 0}
        return {
            "n": len(places),
            "cost": round(fmean(place.cost for place in places), DIGITS),
            "effect": mean_and_interval([place.effect for place in places]),
            "net": mean_and_interval(_net(places, self.price)),
        }


def worth(places: Sequence[PlaceEffect], price: float, loosest: float) -> Worth:
    """Return the threshold beyond which the sum of effect − price · cost is largest.

    Where fewer than `LEAST_PLACES` lie beyond it, or the 95 % bootstrap interval of their mean does
    not lie above 0, it is infinite.

    `price` is in nats a forward token; `loosest` is the lowest threshold that is allowed.
    """
    ordered = sorted(
        (place for place in places if place.metric > loosest),
        key=lambda place: place.metric,
        reverse=True,
    )
    values = [place.metric for place in ordered] + [loosest]
    net = _net(ordered, price)
    sums = np.cumsum(net)
    # A threshold can stand only between two places that differ in what is measured.
    ends = [n for n in range(LEAST_PLACES, len(ordered) + 1) if values[n - 1] > values[n]]
    best = max(ends, key=lambda n: sums[n - 1], default=0)
    if not best or bootstrap_mean(net[:best]).low <= 0:  # it may be chance
        return Worth(math.inf, price, (), tuple(ordered))
    threshold = loosest if best == len(ordered) else (values[best - 1] + values[best]) / 2
    return Worth(threshold, price, tuple(ordered[:best]), tuple(ordered[best:]))


def _net(places: Sequence[PlaceEffect], price: float) -> list[float]:
    return [place.effect - price * place.cost for place in places]


def forks(answers: Sequence[Answered], kinds: Mapping[str, str]) -> list[PlaceEffect]:
    """Return the forks of some answers, by varentropy.

    The effect is the lead of the branch that was chosen over the first one, times the tokens that
    both have: 0 where the first one stays.
    """
    found = []
    for answer in answers:
        for place, step in enumerate(answer.steps):
            if step.fork is None:
                continue
            first, winner = step.fork.branches[0], step.fork.branches[step.fork.winner]
            compared = min(len(first.tokens), len(winner.tokens))
            _, cost = forward_tokens(answer.steps[place : place + len(winner.tokens)])
            effect, kind = (winner.lead or 0.0) * compared, kinds.get(answer.question, "")
            found.append(PlaceEffect(step.varentropy, effect, cost, kind))
    return found


def resamples(
    answerer: Answerer,
    control: Sequence[Answered],
    profile: Profile,
    bare: Profile,
    kinds: Mapping[str, str],
) -> list[PlaceEffect]:
    """Return the effects of resampling, by varentropy, at places of answers without interventions.

    A token is drawn there with the parameters of `resample` and the same seed. From it the answer
    goes on without interventions, and is compared with what stood there: the difference of the mean
    log p of up to `FOLLOWING` tokens, the drawn one among them, times their number. Where the same
    token is drawn, nothing changes.

    The thresholds of `profile` determine the places; `bare` is the profile of the control.
    """
    places = [
        (answer, number)
        for answer in control
        for number, strategy in enumerate(classify(answer.steps, profile))
        if strategy is Strategy.RESAMPLE and len(answer.steps) - number >= LEAST_FOLLOWING
    ]
    order = np.random.default_rng(abs(answerer.seed)).permutation(len(places))[:MOST_RESAMPLED]
    chosen = [places[number] for number in sorted(order)]
    drawing = make_sampler("entropix", only(profile, RESAMPLE))
    bare_sampler = make_sampler("entropix", bare)
    answerer.journal.expect(len(chosen))
    drawn = answerer.run("drawn", [answer.continued(n, drawing, 1) for answer, n in chosen])
    others = [
        (place, steps[0].token)
        for place, ((answer, number), steps) in enumerate(zip(chosen, drawn, strict=True))
        if steps[0].token != answer.steps[number].token
    ]
    planned = []
    for place, token in others:
        answer, number = chosen[place]
        planned.append(answer.continued(number, bare_sampler, FOLLOWING, forced=(token,)))
    answerer.journal.expect(len(planned))
    effects = [0.0] * len(chosen)
    for (place, _), steps in zip(others, answerer.run("resampled", planned), strict=True):
        answer, number = chosen[place]
        stood = answer.steps[number : number + FOLLOWING]
        effects[place] = len(stood) * (Stretch.of(steps).logprob - Stretch.of(stood).logprob)
    return [
        PlaceEffect(answer.steps[number].varentropy, effect, 0.0, kinds.get(answer.question, ""))
        for (answer, number), effect in zip(chosen, effects, strict=True)
    ]
