"""The effect of a profile's interventions on held-out prompts: answers with them and without them.

An arm is the profile with one intervention, or with all of them; the control has none, and takes
the most probable token where a fork could be. Both answer the same prompts with the same seeds, and
are alike up to the first place where the arm would act, so an arm goes on from there. The effect is
the difference of the mean log probability of an answer's own tokens. For forks that measure is
circular, since they are chosen by it: without a gain they are left out, but a gain is no proof.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from ...profiles.profile import Profile
from ...profiles.sections import UNFORKED_ARGMAX
from ...profiles.tree import classify
from ...samplers.registry import make_sampler
from ...step import NOT_OF_THE_MODEL, Step, Strategy
from ...summary import forward_tokens, repetition
from ..answering import Answered, Answerer
from ..evaluation.statistics import Interval, bootstrap_mean
from .measurements import DIGITS, mean_and_interval

THINK, BRANCH, HOT, RESAMPLE = "think", "branch", "hot", "resample"
"""`HOT` draws from the strategy's distribution where a fork could be, and none is."""
OFF: dict[str, Mapping[str, Mapping[str, Any]]] = {
    THINK: {"think": {"max_insertions": 0}},
    BRANCH: {"branch": {"max_branches": 0}},
    HOT: {"branch": {"unforked": UNFORKED_ARGMAX}},
    RESAMPLE: {"thresholds": {"resample_min_entropy": math.inf}},
}
"""By intervention: the fields that leave it out."""
ACTS = {
    THINK: {Strategy.THINK, Strategy.THINK_SAMPLE},
    BRANCH: {Strategy.BRANCH},
    HOT: {Strategy.BRANCH},
    RESAMPLE: {Strategy.RESAMPLE},
}
"""By intervention: the strategies by which an answer may differ from one without it."""
MUST_GAIN = (BRANCH, HOT)
"""Interventions that are left out unless their whole interval lies above 0; others, if below."""
TOGETHER = "together"
"""The name of the arm with all interventions."""
ALL_KINDS = "all"


def without(profile: Profile, *names: str) -> Profile:
    for name in names:
        profile = profile.replace(OFF[name])
    return profile


def only(profile: Profile, name: str) -> Profile:
    return without(profile, *(other for other in OFF if other != name))


def used(profile: Profile) -> list[str]:
    return [name for name in OFF if without(profile, name) != profile]


def first_place(steps: Sequence[Step], profile: Profile) -> int | None:
    """Return the first place at which a profile's interventions would act; None if there is none.

    Until there, an answer with them is the same as the given one without.
    """
    acting = {strategy for name in used(profile) for strategy in ACTS[name]}
    found = classify(steps, profile)
    return next((place for place, strategy in enumerate(found) if strategy in acting), None)


@dataclass(frozen=True)
class AblationEffect:
    """What one intervention did to the answers to prompts of one kind."""

    intervention: str
    kind: str
    logprobs: tuple[float, ...]
    """A difference for each answer, in nats a token."""
    repetitions: tuple[float, ...]
    """Likewise, of the share of tokens that repeat an n-gram."""
    cost: float
    """Forward tokens a committed token with the intervention, less those without."""

    @property
    def interval(self) -> Interval:
        """Of the mean difference of log p, over the answers."""
        return bootstrap_mean(self.logprobs)

    @property
    def verdict(self) -> str:
        """Why the intervention is left out: "harmful" or "no gain"; empty where it stays."""
        if self.kind != ALL_KINDS:
            return ""
        if self.interval.high < 0:
            return "harmful"
        return "no gain" if self.intervention in MUST_GAIN and self.interval.low <= 0 else ""

    def to_dict(self) -> dict[str, Any]:
        record: dict[str, Any] = {
            "kind": self.kind,
            "n": len(self.logprobs),
            "logprob": mean_and_interval(self.logprobs),
            "repetition": mean_and_interval(self.repetitions),
            "cost": round(self.cost, DIGITS),
        }
        if self.cost > 0:
            per_token = fmean(self.logprobs) / self.cost
            record["logprob_per_forward_token"] = round(per_token, DIGITS)
        return record


@dataclass(frozen=True)
class Ablation:
    """The answers of a control, and how they would be with interventions."""

    answerer: Answerer
    control: Sequence[Answered]
    kinds: Mapping[str, str]
    """By prompt; one without a kind counts among all only."""
    tokens: int
    """The most of an answer."""

    def answers(self, stage: str, profile: Profile) -> list[list[Step]]:
        """Return the same answers with the interventions of a profile, otherwise the control's."""
        sampler = make_sampler("entropix", profile)
        places = [first_place(answer.steps, profile) for answer in self.control]
        planned = [
            answer.continued(place, sampler, self.tokens - place)
            for answer, place in zip(self.control, places, strict=True)
            if place is not None
        ]
        self.answerer.journal.expect(len(planned))
        treated = iter(self.answerer.run(stage, planned))
        return [
            answer.steps if place is None else [*answer.steps[:place], *next(treated)]
            for answer, place in zip(self.control, places, strict=True)
        ]

    def effects(self, name: str, treated: Sequence[list[Step]]) -> list[AblationEffect]:
        pairs = [
            (self.kinds.get(answer.question), steps, answer.steps)
            for answer, steps in zip(self.control, treated, strict=True)
        ]
        found = []
        for kind in [ALL_KINDS, *dict.fromkeys(self.kinds.values())]:
            of_kind = [(one, other) for own, one, other in pairs if kind in (ALL_KINDS, own)]
            if of_kind:
                found.append(effect_of(name, kind, of_kind))
        return found

    def separate_effects(self, profile: Profile) -> list[AblationEffect]:
        return [
            effect
            for name in used(profile)
            for effect in self.effects(name, self.answers(f"only {name}", only(profile, name)))
        ]


def without_rejected(profile: Profile, found: Sequence[AblationEffect]) -> Profile:
    rejected = [effect.intervention for effect in found if effect.verdict]
    return without(profile, *(name for name in rejected if name in OFF))


def effect_of(
    name: str, kind: str, pairs: Sequence[tuple[list[Step], list[Step]]]
) -> AblationEffect:
    """Return the effect of an intervention on answers, each paired with the one without it."""
    treated, control = zip(*pairs, strict=True)
    return AblationEffect(
        name,
        kind,
        tuple(_difference(one, other) for one, other in pairs),
        tuple(_repeated(one) - _repeated(other) for one, other in pairs),
        _cost(treated) - _cost(control),
    )


def _cost(answers: Sequence[list[Step]]) -> float:
    committed, discarded = map(sum, zip(*map(forward_tokens, answers), strict=True))
    return float((committed + discarded) / max(1, committed))


def _difference(steps: Sequence[Step], control: Sequence[Step]) -> float:
    """Return the difference of log p; 0 for the same tokens, which differ by rounding at most."""
    if [step.token for step in steps] == [step.token for step in control]:
        return 0.0
    return _own_logprob(steps) - _own_logprob(control)


def _own_logprob(steps: Sequence[Step]) -> float:
    own = [step.logprob for step in steps if step.origin not in NOT_OF_THE_MODEL]
    return fmean(own) if own else 0.0


def _repeated(steps: Sequence[Step]) -> float:
    return repetition([[step.token for step in steps]])
