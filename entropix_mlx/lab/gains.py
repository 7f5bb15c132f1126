"""What each intervention gains on held-out prompts, and what it costs: with it against without it.

An arm is the profile with one intervention; the control has none. Both answer the same prompts with
the same seeds. The gain is the difference of the mean log probability of an answer's own tokens.
For forks that measure is circular, since they are chosen by it: it can show harm, and no benefit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from ..profiles.profile import Profile
from ..step import NOT_OF_THE_MODEL, Step
from ..summary import repetition
from .asking import Asker
from .evaluation.records import forward_tokens
from .evaluation.statistics import Interval, bootstrap_mean

Changes = Mapping[str, Mapping[str, Any]]

OFF: dict[str, Changes] = {
    "think": {"think": {"max_insertions": 0}},
    "branch": {"branch": {"max_branches": 0}},
    "resample": {"thresholds": {"resample_min_entropy": math.inf}},
}
"""By intervention: the fields that leave it out."""
ALL_KINDS = "all"
DIGITS = 4


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
    def harms(self) -> bool:
        """Whether the whole interval lies on the harmful side."""
        return self.interval.high < 0

    def to_dict(self) -> dict[str, Any]:
        """Return the figures for a profile's record."""
        gain = fmean(self.logprobs)
        told: dict[str, Any] = {
            "kind": self.kind,
            "n": len(self.logprobs),
            "logprob": [round(value, DIGITS) for value in (gain, *self.interval)],
            "repetition": [
                round(value, DIGITS)
                for value in (fmean(self.repetitions), *bootstrap_mean(self.repetitions))
            ],
            "cost": round(self.cost, DIGITS),
        }
        if self.cost > 0:
            told["gain_a_forward_token"] = round(gain / self.cost, DIGITS)
        return told


def gains(
    asker: Asker, prompts: Sequence[str], kinds: Mapping[str, str], profile: Profile, tokens: int
) -> list[Gain]:
    """Return what each intervention of a profile gains, over all prompts and by their kinds.

    Args:
        asker: asks the model.
        prompts: the held-out ones; a prompt that stands there twice is asked with two seeds.
        kinds: of the prompts; those that have none count among all only.
        profile: with its interventions.
        tokens: the most of an answer.
    """
    bare = profile
    for changes in OFF.values():
        bare = bare.replace(changes)
    control = [one.steps for one in asker.answers("bare", prompts, tokens, profile=bare)]
    found = []
    for name in OFF:
        arm = profile
        for other, changes in OFF.items():
            arm = arm if other == name else arm.replace(changes)
        if arm == bare:
            continue
        treated = [one.steps for one in asker.answers(f"only {name}", prompts, tokens, profile=arm)]
        for kind in [ALL_KINDS, *dict.fromkeys(kinds.values())]:
            places = [
                place
                for place, prompt in enumerate(prompts)
                if kind in (ALL_KINDS, kinds.get(prompt))
            ]
            pairs = [(treated[place], control[place]) for place in places]
            if pairs:
                found.append(_gain(name, kind, pairs))
    return found


def without_harm(profile: Profile, found: Sequence[Gain]) -> Profile:
    """Return a profile without the interventions that do harm over all prompts."""
    for gain in found:
        if gain.kind == ALL_KINDS and gain.harms:
            profile = profile.replace(OFF[gain.intervention])
    return profile


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
