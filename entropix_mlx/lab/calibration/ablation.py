"""What interventions gain on held-out prompts, and what they cost: with them against without them.

An arm is the profile with one intervention, or with all of them; the control has none. Both answer
the same prompts with the same seeds, and are alike up to the first place where the arm would act,
so an arm goes on from there. The gain is the difference of the mean log probability of an answer's
own tokens. For forks that measure is circular, since they are chosen by it: it can show harm, and
no benefit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from ...profiles.profile import Profile
from ...step import NOT_OF_THE_MODEL, Step
from ...summary import repetition
from ..ask_model import Answered, Asker
from ..evaluation.records import forward_tokens
from ..evaluation.statistics import Interval, bootstrap_mean
from .interventions import OFF, first_place, only, sampler, used, without
from .measurements import DIGITS, mean_and_interval

TOGETHER = "together"
"""What the arm with all interventions is called."""
ALL_KINDS = "all"


@dataclass(frozen=True)
class Gain:
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
        """The 95 % bootstrap interval of the mean difference of log p, over the answers."""
        return bootstrap_mean(self.logprobs)

    @property
    def overall(self) -> bool:
        """Whether it counts the answers to all prompts."""
        return self.kind == ALL_KINDS

    @property
    def harms(self) -> bool:
        """Whether the whole interval lies on the harmful side."""
        return self.interval.high < 0

    def to_dict(self) -> dict[str, Any]:
        """Return the figures for a profile's record."""
        told: dict[str, Any] = {
            "kind": self.kind,
            "n": len(self.logprobs),
            "logprob": mean_and_interval(self.logprobs),
            "repetition": mean_and_interval(self.repetitions),
            "cost": round(self.cost, DIGITS),
        }
        if self.cost > 0:
            told["gain_a_forward_token"] = round(fmean(self.logprobs) / self.cost, DIGITS)
        return told


@dataclass(frozen=True)
class Compared:
    """The answers of a control, and of what is compared with it."""

    asker: Asker
    control: Sequence[Answered]
    kinds: Mapping[str, str]
    """Of the texts that prompts ask for; a prompt without a kind counts among all only."""
    tokens: int
    """The most of an answer."""

    def answers(self, stage: str, profile: Profile) -> list[list[Step]]:
        """Return the same answers with a profile that has interventions.

        Args:
            stage: what the journal calls them.
            profile: the control's, but for the interventions.
        """
        places = [first_place(answer.steps, profile) for answer in self.control]
        treating = sampler(profile)
        jobs = [
            answer.going_on(place, treating, self.tokens - place)
            for answer, place in zip(self.control, places, strict=True)
            if place is not None
        ]
        self.asker.progress.expect(len(jobs))
        ways = iter(self.asker.run(stage, jobs))
        return [
            answer.steps if place is None else [*answer.steps[:place], *next(ways)]
            for answer, place in zip(self.control, places, strict=True)
        ]

    def gains(self, name: str, treated: Sequence[list[Step]]) -> list[Gain]:
        """Return what was gained over all prompts, and by their kinds."""
        pairs = [
            (self.kinds.get(answer.asked), steps, answer.steps)
            for answer, steps in zip(self.control, treated, strict=True)
        ]
        found = []
        for kind in [ALL_KINDS, *dict.fromkeys(self.kinds.values())]:
            of_kind = [(one, other) for own, one, other in pairs if kind in (ALL_KINDS, own)]
            if of_kind:
                found.append(_gain(name, kind, of_kind))
        return found


def separate_gains(compared: Compared, profile: Profile) -> list[Gain]:
    """Return what each intervention of a profile gains alone."""
    return [
        gain
        for name in used(profile)
        for gain in compared.gains(name, compared.answers(f"only {name}", only(profile, name)))
    ]


def without_harm(profile: Profile, found: Sequence[Gain]) -> Profile:
    """Return a profile without the interventions that do harm over all prompts."""
    harmful = [gain.intervention for gain in found if gain.overall and gain.harms]
    return without(profile, *(name for name in harmful if name in OFF))


def own_logprob(steps: Sequence[Step]) -> float:
    """Return the mean log probability of an answer's own tokens, in nats."""
    own = [step.logprob for step in steps if step.origin not in NOT_OF_THE_MODEL]
    return fmean(own) if own else 0.0


def _gain(name: str, kind: str, pairs: Sequence[tuple[list[Step], list[Step]]]) -> Gain:
    costs = []
    for side in (0, 1):
        counted = [forward_tokens(pair[side]) for pair in pairs]
        committed = sum(kept for kept, _ in counted)
        costs.append((committed + sum(lost for _, lost in counted)) / max(1, committed))
    return Gain(
        name,
        kind,
        tuple(_difference(one, other) for one, other in pairs),
        tuple(_repeated(one) - _repeated(other) for one, other in pairs),
        costs[0] - costs[1],
    )


def _difference(steps: Sequence[Step], control: Sequence[Step]) -> float:
    """Return the gain of log p; 0 for the same tokens, which differ by rounding at most."""
    if [step.token for step in steps] == [step.token for step in control]:
        return 0.0
    return own_logprob(steps) - own_logprob(control)


def _repeated(steps: Sequence[Step]) -> float:
    return repetition([[step.token for step in steps]])
