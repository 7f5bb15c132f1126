"""Scores of how sure a model was of a whole answer, computed from the answer's own tokens.

As a threshold compares them (`score_of`), higher is surer with every score. None is a probability
of being right: `entropix eval --confidence` compares how well they predict that, and `entropix
calibrate --abstain` finds the threshold below which an answer is called unsure.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from ..errors import brief
from ..step import NOT_OF_THE_MODEL, Step

SCORED = ("logprob", "entropy", "varentropy", "margin", "attention_entropy")
OPTIONAL = ("self_certainty", "top_logprob")
"""Metrics of tokens that some records do not have."""


@dataclass(frozen=True)
class AnswerMetrics:
    """The metrics of an answer's tokens; those of inserted texts are left out."""

    logprob: tuple[float, ...] = ()
    entropy: tuple[float, ...] = ()
    varentropy: tuple[float, ...] = ()
    margin: tuple[float, ...] = ()
    attention_entropy: tuple[float, ...] = ()
    self_certainty: tuple[float, ...] = ()
    """Empty where one of the tokens has none, as `top_logprob`."""
    top_logprob: tuple[float, ...] = ()
    """The mean log p of the most probable tokens at each position, as many as were listed."""
    previous_attention: tuple[tuple[float, ...], ...] = ()
    """Of each layer that was read, how much its head attends to the token before each token but the
    first; empty unless the answer was read again (`api.attention`)."""
    first: int = 0  # index of the first token that is not blank

    @classmethod
    def of(cls, steps: Iterable[Step]) -> AnswerMetrics:
        own = [step for step in steps if step.origin not in NOT_OF_THE_MODEL]
        first = next((index for index, step in enumerate(own) if step.text.strip()), 0)
        values = {name: tuple(getattr(step, name) for step in own) for name in SCORED}
        certainty = [s.self_certainty for s in own if s.self_certainty is not None]
        listed = [fmean(top.logprob for top in s.top_logprobs) for s in own if s.top_logprobs]
        return cls(
            **values,
            self_certainty=tuple(certainty) if len(certainty) == len(own) else (),
            top_logprob=tuple(listed) if len(listed) == len(own) else (),
            first=first,
        )

    @property
    def rauq(self) -> tuple[float, ...]:
        """Of each layer of `previous_attention`."""
        return tuple(rauq_of_layer(self.logprob, layer) for layer in self.previous_attention)


GROUP = 3
"""Tokens in a row whose mean log p is the `lowest_logprob` of an answer, where it is lowest."""
LONG_GROUP = 32


def lowest_group(values: Sequence[float], length: int = GROUP) -> float:
    """Return the lowest mean of so many values in a row; of fewer values, their mean."""
    groups = range(max(1, len(values) - length + 1))
    return min(fmean(values[first : first + length]) for first in groups)


RAUQ_ALPHA = 0.2
"""The weight of a token's own probability, as published."""


def rauq_of_layer(
    logprob: Sequence[float], attention: Sequence[float], alpha: float = RAUQ_ALPHA
) -> float:
    """Return 1 − the mean log confidence of an answer's tokens, by the attention of one layer.

    Args:
        logprob: of every token.
        attention: how much a head attends to the token before each token but the first.
        alpha: the weight of a token's own probability.
    """
    confidence = [math.exp(logprob[0])]
    for own, weight in zip(logprob[1:], attention, strict=True):
        confidence.append(alpha * math.exp(own) + (1 - alpha) * weight * confidence[-1])
    return 1 - fmean(math.log(max(each, sys.float_info.min)) for each in confidence)


@dataclass(frozen=True)
class Score:
    """How a score is computed from an answer's own tokens, and where it is from."""

    of: Callable[[AnswerMetrics], float]
    formula: str
    """With t for the tokens of an answer, p for a token's probability, H for entropy."""
    published: str
    unit: str = ""
    lower_is_surer: bool = False
    needs: str = "logprob"
    """The metric of `AnswerMetrics` without which it is unknown."""

    def known(self, tokens: AnswerMetrics) -> bool:
        values = getattr(tokens, self.needs)
        return bool(values) and not any(map(math.isnan, values))


NATS, BITS = "nats", "bits"
_LARGEST_EXPONENT = 700.0

SCORES: dict[str, Score] = {
    "mean_logprob": Score(
        lambda tokens: fmean(tokens.logprob),
        "1/n Σ ln p(t)",
        "length-normalised log probability; lm-polygraph `Perplexity` is −1 times it",
        NATS,
    ),
    "min_logprob": Score(
        lambda tokens: min(tokens.logprob), "min ln p(t)", "minimum token log probability", NATS
    ),
    "perplexity": Score(
        lambda tokens: math.exp(min(-fmean(tokens.logprob), _LARGEST_EXPONENT)),
        "exp(−1/n Σ ln p(t))",
        "perplexity; orders answers as `mean_logprob` does",
        lower_is_surer=True,
    ),
    "sequence_probability": Score(
        lambda tokens: math.exp(math.fsum(tokens.logprob)),
        "Π p(t)",
        "lm-polygraph `MaximumSequenceProbability` is −ln of it",
    ),
    "lowest_logprob": Score(
        lambda tokens: lowest_group(tokens.logprob),
        f"lowest mean of ln p(t) over {GROUP} tokens in a row",
        "this package",
        NATS,
    ),
    "min_margin": Score(
        lambda tokens: min(tokens.margin), "min (p₁ − p₂)", "margin", needs="margin"
    ),
    "first_margin": Score(
        lambda tokens: tokens.margin[tokens.first],
        "p₁ − p₂ at the first token that is not blank",
        "margin",
        needs="margin",
    ),
    "mean_entropy": Score(
        lambda tokens: fmean(tokens.entropy),
        "1/n Σ H(t)",
        "lm-polygraph `MeanTokenEntropy`, there in nats",
        BITS,
        lower_is_surer=True,
        needs="entropy",
    ),
    "max_entropy": Score(
        lambda tokens: max(tokens.entropy),
        "max H(t)",
        "maximum token entropy",
        BITS,
        lower_is_surer=True,
        needs="entropy",
    ),
    "first_entropy": Score(
        lambda tokens: tokens.entropy[tokens.first],
        "H at the first token that is not blank",
        "first content token (2605.05166, there of the top k, from 0 to 1)",
        BITS,
        lower_is_surer=True,
        needs="entropy",
    ),
    "mean_varentropy": Score(
        lambda tokens: fmean(tokens.varentropy),
        "1/n Σ V(t)",
        "entropix",
        "bits²",
        lower_is_surer=True,
        needs="varentropy",
    ),
    "attention_entropy": Score(
        lambda tokens: fmean(tokens.attention_entropy),
        "1/n Σ attention entropy(t)",
        "entropix",
        BITS,
        lower_is_surer=True,
        needs="attention_entropy",
    ),
    "self_certainty": Score(
        lambda tokens: fmean(tokens.self_certainty),
        "1/n Σ KL(uniform ‖ prediction at t)",
        "self-certainty (2502.18581)",
        NATS,
        needs="self_certainty",
    ),
    "lowest_group_confidence": Score(
        lambda tokens: lowest_group([-value for value in tokens.top_logprob]),
        f"lowest mean over {GROUP} tokens in a row of −1/k Σ ln p of the k listed tokens",
        "DeepConf (2508.15260); needs `--top-logprobs k`",
        NATS,
        needs="top_logprob",
    ),
    "lowest_long_group_confidence": Score(
        lambda tokens: lowest_group([-value for value in tokens.top_logprob], LONG_GROUP),
        f"likewise over {LONG_GROUP} tokens in a row",
        "DeepConf (2508.15260); needs `--top-logprobs k`",
        NATS,
        needs="top_logprob",
    ),
}
"""By name: a score of an answer that has at least one token of its own."""
READ_AGAIN: dict[str, Score] = {
    "rauq": Score(
        lambda tokens: max(tokens.rauq),
        "max over layers of 1 − 1/n Σ ln c(t), where c(t) ="
        f" {RAUQ_ALPHA:g} p(t) + {1 - RAUQ_ALPHA:g} a(t) c(t − 1)",
        "RAUQ (2505.20045), as lm-polygraph has it; needs `eval --rauq`",
        NATS,
        lower_is_surer=True,
        needs="rauq",
    )
}
"""Likewise, of an answer that was read again after it was generated."""
NO_SCORE = "none"  # the score of a profile that calls no answer unsure
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
    score = (SCORES | READ_AGAIN)[name]
    if not score.known(tokens):
        return -math.inf
    return -score.of(tokens) if score.lower_is_surer else score.of(tokens)


def scores_of(tokens: AnswerMetrics) -> dict[str, float]:
    """Return the scores of an answer that are known, by name and as they are published."""
    return {name: score.of(tokens) for name, score in SCORES.items() if score.known(tokens)}
