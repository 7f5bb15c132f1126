"""Scores of how sure a model was of a whole answer, computed from the answer's own tokens.

With every score, higher is surer. None is a probability of being right: `entropix eval
--confidence` compares how well they predict that, and `entropix calibrate --abstain` finds the
threshold below which an answer is called unsure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from ..errors import brief
from ..step import NOT_OF_THE_MODEL, Step

SCORED = ("logprob", "entropy", "varentropy", "margin", "attention_entropy")


@dataclass(frozen=True)
class AnswerMetrics:
    """The metrics of an answer's tokens; those of inserted texts are left out."""

    logprob: tuple[float, ...] = ()
    entropy: tuple[float, ...] = ()
    varentropy: tuple[float, ...] = ()
    margin: tuple[float, ...] = ()
    attention_entropy: tuple[float, ...] = ()
    first: int = 0  # index of the first token that is not blank

    @classmethod
    def of(cls, steps: Iterable[Step]) -> AnswerMetrics:
        own = [step for step in steps if step.origin not in NOT_OF_THE_MODEL]
        first = next((index for index, step in enumerate(own) if step.text.strip()), 0)
        values = {name: tuple(getattr(step, name) for step in own) for name in SCORED}
        return cls(**values, first=first)


GROUP = 3
"""Tokens in a row whose mean log p is the `lowest_logprob` of an answer, where it is lowest."""


def lowest_group(logprob: Sequence[float]) -> float:
    """Return the lowest mean of so many values in a row; of fewer values, their mean."""
    groups = range(max(1, len(logprob) - GROUP + 1))
    return min(fmean(logprob[first : first + GROUP]) for first in groups)


Score = Callable[[AnswerMetrics], float]

SCORES: dict[str, Score] = {
    "mean_logprob": lambda tokens: fmean(tokens.logprob),
    "lowest_logprob": lambda tokens: lowest_group(tokens.logprob),
    "min_margin": lambda tokens: min(tokens.margin),
    "first_margin": lambda tokens: tokens.margin[tokens.first],
    "mean_entropy": lambda tokens: -fmean(tokens.entropy),
    "max_entropy": lambda tokens: -max(tokens.entropy),
    "mean_varentropy": lambda tokens: -fmean(tokens.varentropy),
    "attention_entropy": lambda tokens: -fmean(tokens.attention_entropy),
}
"""By name: a score of an answer that has at least one token of its own."""
NO_SCORE = "none"  # the score of a profile that calls no answer unsure
UNITS = {"logprob": " nats", "entropy": " bits", "varentropy": " bits²"}
"""By the last word of a score's name."""
ADVICE = "check it, or ask more precisely"
"""With an answer that is unsure."""


def check_score(value: Any) -> str:
    known = (NO_SCORE, *SCORES)
    if value not in known:
        raise ValueError(f"must be one of {', '.join(known)}, not {brief(value)}")
    return str(value)


@dataclass(frozen=True)
class Verdict:
    """Whether an answer is called unsure, and why."""

    score: str
    value: float
    threshold: float
    risk: float
    """At most this share of the answers at or above the threshold was wrong, when it was set."""

    @property
    def unsure(self) -> bool:
        return not self.value >= self.threshold

    @property
    def reason(self) -> str:
        name = self.score.replace("_", " ").replace("logprob", "log p")
        unit = UNITS.get(self.score.rpartition("_")[2], "")
        # Scores of entropies are negative, so that higher is surer; people read the entropy itself.
        sign, side = (-1, "above") if "entropy" in self.score else (1, "below")
        return (
            f"unsure: {name} {sign * self.value:.3g}{unit}, {side} {sign * self.threshold:.3g}"
            f" (set for a risk of {self.risk:.0%})"
        )

    def to_dict(self) -> dict[str, Any]:
        value = self.value if math.isfinite(self.value) else None
        return asdict(self) | {"value": value, "unsure": self.unsure}


def score_of(name: str, tokens: AnswerMetrics) -> float:
    """Return a score of an answer; minus infinity where it has no token of its own."""
    return SCORES[name](tokens) if tokens.logprob else -math.inf
