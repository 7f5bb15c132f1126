"""The sections of a profile: the names of their fields, and what each may hold.

`reference.toml` says beside each number what it means, with its unit and the formula it stands in.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainValidator

from ..errors import brief
from ..step import Metrics
from .confidence import NO_SCORE, SCORES, AnswerMetrics, Verdict, score_of
from .fields import Count, Finite, Positive, Share, Threshold, TopK, Whole, one_of

PASSAGE = "{passage}"  # where a passage stands in the text that introduces it
Gap = Annotated[Count, Field(ge=1)]


def check_thinking_text(value: Any) -> Any:
    """Return a thinking text: a text, a token id, or a list of them."""
    items = value if isinstance(value, list) else [value]
    fits = all(isinstance(v, (str, int)) and not isinstance(v, bool) and v != "" for v in items)
    if not items or not fits:
        raise ValueError(f"must be a text, a token id, or a list of them, not {brief(value)}")
    return value


def check_passage_text(value: str) -> str:
    if value.count(PASSAGE) != 1:
        raise ValueError(f"must hold {PASSAGE} once")
    return value


UNFORKED_ARGMAX, UNFORKED_DRAW = "argmax", "draw"
MOST_FORKS = 8
"""`max_branches` where forks are turned on and no number is given."""
MOST_ANSWERS = 64  # to one question


class Section(BaseModel):
    """A table of a profile."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class Base(Section):
    """Sampling parameters before a strategy changes them."""

    temperature: Positive
    top_p: Share
    top_k: TopK
    min_p: Share


class Thresholds(Section):
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


class Think(Section):
    """The thinking text, where and how often it may be inserted, and how to sample without it."""

    text: Annotated[str | int | list[str | int], PlainValidator(check_thinking_text)]
    wait: Count
    max_insertions: Count
    min_gap: Gap
    temperature_offset: Finite
    temperature_slope: Finite
    max_temperature: Positive


class RetrievalRule(Section):
    """When a passage of the user's notes is retrieved, and how it is written into the answer."""

    when: Literal["lost", "start"]
    min_entropy: Threshold
    min_score: Share
    text: Annotated[str, AfterValidator(check_passage_text)]
    max_tokens: Annotated[Whole, Field(ge=1, le=10_000)]
    wait: Count
    max_insertions: Count
    min_gap: Gap


class BranchStrategy(Section):
    """How far the branches of a fork are followed, how they are compared, and how to sample where
    the strategy is `branch`."""

    width: Annotated[Whole, Field(ge=1, le=64)]
    depth: Annotated[Whole, Field(ge=1, le=1000)]
    margin: Positive
    ask_margin: Positive
    max_branches: Count
    min_gap: Count

    unforked: Literal["argmax", "draw"]
    temperature_offset: Finite
    temperature_slope: Finite
    max_temperature: Positive
    top_k_slope: Finite
    min_top_k: TopK


class Resample(Section):
    """How to sample where the strategy is `resample`: entropy and varentropy are high."""

    temperature_offset: Finite
    temperature_slope: Finite
    min_temperature: Positive
    top_p_slope: Finite
    min_top_p: Share


class Adaptive(Section):
    """How to sample where the strategy is `adaptive`: everywhere else."""

    candidates: Annotated[Whole, Field(ge=1, le=1000)]
    temperature_logits: Finite
    temperature_attention: Finite
    temperature_agreement: Finite
    top_p_slope: Finite
    min_top_p: Share
    max_top_p: Share
    top_k_interaction: Finite
    top_k_agreement: Finite
    min_top_k: TopK
    max_top_k: TopK
    min_p_slope: Finite
    min_min_p: Share
    max_min_p: Share

    def reversed_limits(self) -> str:
        """Return which lower limit exceeds its upper one, for a message; empty if none does."""
        for name in ("top_p", "top_k", "min_p"):
            low, high = getattr(self, f"min_{name}"), getattr(self, f"max_{name}")
            if low > high:
                return f"adaptive.min_{name} ({low}) exceeds adaptive.max_{name} ({high})"
        return ""


class PositionScore(Section):
    """Weights of the published score of a position; the score of a token adds its log p."""

    entropy: Finite
    attention_entropy: Finite
    varentropy: Finite
    attention_varentropy: Finite
    agreement: Finite
    interaction_strength: Finite

    def of(self, metrics: Metrics[float]) -> float:
        """Return the score of one position; the score of a token there is log p + this.

        A measurement that was not taken (NaN) adds nothing.
        """
        low = ("entropy", "attention_entropy", "varentropy", "attention_varentropy")
        terms: list[float] = [getattr(self, name) * (1 - metrics[name]) for name in low]
        high = ("agreement", "interaction_strength")
        terms += [getattr(self, name) * metrics[name] for name in high]
        return sum(term for term in terms if not math.isnan(term))


class Baselines(Section):
    """Default sampling parameters of the samplers to compare with."""

    temperature: Positive
    top_p: Share
    min_p: Share


class Targets(Section):
    """What calibration solves the thresholds for."""

    argmax: Share
    think: Share
    branch: Share
    resample: Share


class Abstain(Section):
    """Which answers are called unsure, as `entropix calibrate --abstain` found it."""

    score: Annotated[str, PlainValidator(one_of(NO_SCORE, *SCORES))]
    threshold: Threshold
    risk: Share
    n: Count
    task: str

    def verdict(self, tokens: AnswerMetrics) -> Verdict | None:
        """Return whether an answer is unsure; None where the profile has no threshold."""
        if self.score == NO_SCORE:
            return None
        return Verdict(self.score, score_of(self.score, tokens), self.threshold, self.risk)


class AnswersRule(Section):
    """How more answers are drawn to a prompt."""

    count: Annotated[Whole, Field(ge=2, le=MOST_ANSWERS)]
    temperature: Positive


class TopNSigma(Section):
    """The option of the sampler `top_n_sigma`."""

    n_sigma: Positive


class Xtc(Section):
    """The options of the sampler `xtc`."""

    threshold: Share
    probability: Share


class SamplerOptions(Section):
    """Options of samplers of their own; those that answers share are `sampler_specs.PARAMETERS`."""

    top_n_sigma: TopNSigma
    xtc: Xtc
