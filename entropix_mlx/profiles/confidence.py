"""Scores of how sure a model was of a whole answer, computed from the answer's own tokens.

As a threshold compares them (`score_of`), higher is surer with every score. None is a probability
of being right: `entropix eval` compares how well they predict that, and `entropix
calibrate --abstain` finds the threshold below which an answer is called unsure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from ..step import NOT_OF_THE_MODEL, Step

SCORED = ("logprob", "entropy", "varentropy", "margin")


@dataclass(frozen=True)
class AnswerMetrics:
    """The metrics of an answer's tokens; those of inserted texts are left out."""

    logprob: tuple[float, ...] = ()
    entropy: tuple[float, ...] = ()
    varentropy: tuple[float, ...] = ()
    margin: tuple[float, ...] = ()

    @classmethod
    def of(cls, steps: Iterable[Step]) -> AnswerMetrics:
        own = [step for step in steps if step.origin not in NOT_OF_THE_MODEL]
        return cls(**{name: tuple(getattr(step, name) for step in own) for name in SCORED})


GROUP = 3
"""Tokens in a row whose mean log p is the `lowest_logprob` of an answer, where it is lowest."""


def lowest_group(values: Sequence[float], length: int = GROUP) -> float:
    """Return the lowest mean of so many values in a row; of fewer values, their mean."""
    groups = range(max(1, len(values) - length + 1))
    return min(fmean(values[first : first + length]) for first in groups)


@dataclass(frozen=True)
class Score:
    """A function of one metric of an answer's tokens, and where it is from."""

    metric: str
    """The field of `AnswerMetrics`; where it was not measured, the score is unknown."""
    function: Callable[[Sequence[float]], float]
    formula: str
    """With t for the tokens of an answer, p for a token's probability, H for entropy."""
    published: str
    unit: str = ""

    @property
    def lower_is_surer(self) -> bool:
        return self.metric in ("entropy", "varentropy")

    def of(self, tokens: AnswerMetrics) -> float:
        return self.function(getattr(tokens, self.metric))

    def known(self, tokens: AnswerMetrics) -> bool:
        values = getattr(tokens, self.metric)
        return bool(values) and not any(map(math.isnan, values))


NATS, BITS = "nats", "bits"

SCORES: dict[str, Score] = {
    "mean_logprob": Score(
        "logprob",
        fmean,
        "1/n Σ ln p(t)",
        "length-normalised log probability; lm-polygraph `Perplexity` is −1 times it",
        NATS,
    ),
    "lowest_logprob": Score(
        "logprob",
        lowest_group,
        f"lowest mean of ln p(t) over {GROUP} tokens in a row",
        "this package",
        NATS,
    ),
    "min_margin": Score("margin", min, "min (p₁ − p₂)", "margin"),
    "mean_entropy": Score(
        "entropy", fmean, "1/n Σ H(t)", "lm-polygraph `MeanTokenEntropy`, there in nats", BITS
    ),
    "max_entropy": Score("entropy", max, "max H(t)", "maximum token entropy", BITS),
    "mean_varentropy": Score("varentropy", fmean, "1/n Σ V(t)", "entropix", "bits²"),
}
"""By name: a score of an answer that has at least one token of its own."""
DEFAULT_SCORE = "mean_logprob"
"""Tells how sure an answer is where nobody chooses a score: which prompts get more answers, and
which answers are unsure. It holds in every wording that was tried (docs/studies/wordings.md)."""
CHOICE_SCORE = "lowest_logprob"
"""Chooses among several answers to one prompt: the only rule that gained over all wordings."""
NO_SCORE = "none"  # the score of a profile that calls no answer unsure
ADVICE = "check it, or ask more precisely"
"""With an answer that is unsure."""


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
        score = SCORES[self.score]
        unit = f" {score.unit}" if score.unit else ""
        # Where lower is surer, what is compared is negative; people read the value itself.
        sign, side = (-1, "above") if score.lower_is_surer else (1, "below")
        return (
            f"unsure: {name} {sign * self.value:.3g}{unit}, {side} {sign * self.threshold:.3g}"
            f" (set for a risk of {self.risk:.0%})"
        )

    def to_dict(self) -> dict[str, Any]:
        value = self.value if math.isfinite(self.value) else None
        return asdict(self) | {"value": value, "unsure": self.unsure}


def score_of(name: str, tokens: AnswerMetrics) -> float:
    """Return a score of an answer, higher being surer; minus infinity where it is unknown."""
    score = SCORES[name]
    if not score.known(tokens):
        return -math.inf
    return -score.of(tokens) if score.lower_is_surer else score.of(tokens)


def scores_of(tokens: AnswerMetrics) -> dict[str, float]:
    """Return the scores of an answer that are known, by name and as they are published."""
    return {name: score.of(tokens) for name, score in SCORES.items() if score.known(tokens)}
