"""The sections of a profile: the names of their fields, and what each may hold.

`reference.toml` says beside each number what it means, with its unit and the formula it stands in.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, PlainValidator
from pydantic.dataclasses import dataclass

from ..step import Metrics
from .confidence import NO_SCORE, AnswerMetrics, Verdict, check_score, score_of
from .fields import LARGEST_TOP_K, LARGEST_WHOLE, Number, check_thinking_text

Real = Annotated[float, Number()]
Positive = Annotated[float, Number(0)]
Share = Annotated[float, Number(0, 1)]
Threshold = Annotated[float, Number(-math.inf, math.inf)]
"""A condition that always holds, or never, has an infinite one."""
Count = Annotated[int, Number(0, LARGEST_WHOLE, whole=True)]
TopK = Annotated[int, Number(1, LARGEST_TOP_K, whole=True)]
FIXED = ConfigDict(extra="forbid")
PASSAGE = "{passage}"  # where a passage stands in the text that introduces it


def up_to(most: int, least: int = 1) -> Number:
    return Number(least, most, whole=True)


def check_passage_text(value: str) -> str:
    if value.count(PASSAGE) != 1:
        raise ValueError(f"must hold {PASSAGE} once")
    return value


UNFORKED_ARGMAX, UNFORKED_DRAW = "argmax", "draw"
MOST_FORKS = 8
"""`max_branches` where forks are turned on and no number is given."""
MOST_ANSWERS = 64  # to one question


@dataclass(frozen=True, config=FIXED)
class Base:
    """Sampling parameters before a strategy changes them."""

    temperature: Positive
    top_p: Share
    top_k: TopK
    min_p: Share


@dataclass(frozen=True, config=FIXED)
class Thresholds:
    """Where the decision tree splits; the first strategy whose conditions hold wins."""

    low_entropy: Threshold
    low_varentropy: Threshold
    think_min_entropy: Threshold
    think_max_varentropy: Threshold
    branch_max_entropy: Threshold
    branch_min_varentropy: Threshold
    branch_max_margin: Threshold
    resample_min_entropy: Threshold
    resample_min_varentropy: Threshold


@dataclass(frozen=True, config=FIXED)
class Think:
    """The thinking text, where and how often it may be inserted, and how to sample without it."""

    text: Annotated[str | int | list[str | int], PlainValidator(check_thinking_text)]
    wait: Count
    max_insertions: Count
    min_gap: Annotated[int, up_to(LARGEST_WHOLE)]
    temperature_offset: Real
    temperature_slope: Real
    max_temperature: Positive


@dataclass(frozen=True, config=FIXED)
class RetrievalRule:
    """When a passage of the user's notes is retrieved, and how it is written into the answer."""

    when: Literal["lost", "start"]
    min_entropy: Threshold
    min_score: Share
    text: Annotated[str, AfterValidator(check_passage_text)]
    max_tokens: Annotated[int, up_to(10_000)]
    wait: Count
    max_insertions: Count
    min_gap: Annotated[int, up_to(LARGEST_WHOLE)]


@dataclass(frozen=True, config=FIXED)
class BranchStrategy:
    """How far the branches of a fork are followed, how they are compared, and how to sample where
    the strategy is `branch`."""

    width: Annotated[int, up_to(64)]
    depth: Annotated[int, up_to(1000)]
    margin: Positive
    ask_margin: Positive
    max_branches: Count
    min_gap: Count

    unforked: Literal["argmax", "draw"]
    temperature_offset: Real
    temperature_slope: Real
    max_temperature: Positive
    top_k_slope: Real
    min_top_k: TopK


@dataclass(frozen=True, config=FIXED)
class Resample:
    """How to sample where the strategy is `resample`: entropy and varentropy are high."""

    temperature_offset: Real
    temperature_slope: Real
    min_temperature: Positive
    top_p_slope: Real
    min_top_p: Share


@dataclass(frozen=True, config=FIXED)
class Adaptive:
    """How to sample where the strategy is `adaptive`: everywhere else."""

    candidates: Annotated[int, up_to(1000)]
    temperature_logits: Real
    temperature_attention: Real
    temperature_agreement: Real
    top_p_slope: Real
    min_top_p: Share
    max_top_p: Share
    top_k_interaction: Real
    top_k_agreement: Real
    min_top_k: TopK
    max_top_k: TopK
    min_p_slope: Real
    min_min_p: Share
    max_min_p: Share


@dataclass(frozen=True, config=FIXED)
class PositionScore:
    """Weights of the published score of a position; the score of a token adds its log p."""

    entropy: Real
    attention_entropy: Real
    varentropy: Real
    attention_varentropy: Real
    agreement: Real
    interaction_strength: Real

    def of(self, metrics: Metrics[float]) -> float:
        """Return the score of one position; the score of a token there is log p + this.

        A measurement that was not taken (NaN) adds nothing.
        """
        terms = (
            self.entropy * (1 - metrics.entropy),
            self.attention_entropy * (1 - metrics.attention_entropy),
            self.varentropy * (1 - metrics.varentropy),
            self.attention_varentropy * (1 - metrics.attention_varentropy),
            self.agreement * metrics.agreement,
            self.interaction_strength * metrics.interaction_strength,
        )
        return sum(term for term in terms if not math.isnan(term))


@dataclass(frozen=True, config=FIXED)
class Baselines:
    """Default sampling parameters of the samplers to compare with."""

    temperature: Positive
    top_p: Share
    min_p: Share


@dataclass(frozen=True, config=FIXED)
class Targets:
    """What calibration solves the thresholds for."""

    argmax: Share
    think: Share
    branch: Share
    resample: Share


@dataclass(frozen=True, config=FIXED)
class Abstain:
    """Which answers are called unsure, as `entropix calibrate --abstain` found it."""

    score: Annotated[str, PlainValidator(check_score)]
    threshold: Threshold
    risk: Share
    n: Count
    task: str

    def verdict(self, tokens: AnswerMetrics) -> Verdict | None:
        """Return whether an answer is unsure; None where the profile has no threshold."""
        if self.score == NO_SCORE:
            return None
        return Verdict(self.score, score_of(self.score, tokens), self.threshold, self.risk)


@dataclass(frozen=True, config=FIXED)
class AnswersRule:
    """How more answers are drawn to a prompt."""

    count: Annotated[int, up_to(MOST_ANSWERS, 2)]
    temperature: Positive
