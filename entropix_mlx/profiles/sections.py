"""The sections of a profile: the names of their fields, and what each may hold.

`reference.toml` says beside each number what it means, with its unit and the formula it stands in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..step import Decision, Metrics, Step, Strategy
from .confidence import NO_SCORE, AnswerMetrics, Verdict, check_score, score_of
from .fields import (
    LARGEST_TOP_K,
    check_passage_text,
    check_text,
    check_thinking_text,
    check_words,
    flag,
    one_of,
    real,
    ruled,
    threshold,
    whole,
)

BY_STRATEGY, BY_ENTROPY, BY_MARGIN, BY_CHANCE = "strategy", "entropy", "margin", "chance"
TRIGGERS = (BY_STRATEGY, BY_ENTROPY, BY_MARGIN, BY_CHANCE)
"""What makes a position a fork: see `ForkRule.forks`."""
UNFORKED_ARGMAX, UNFORKED_DRAW = "argmax", "draw"
MODE_TEXT, MODE_ANSWERS, MODE_LEAVES = "text", "answers", "leaves"
"""What becomes of the branches of a fork."""
MOST_FORKS = 8
"""`max_branches` where forks are turned on and no number is given."""
BEST, VOTE = "best", "vote"
"""How one of several answers is chosen."""
MOST_ANSWERS = 64  # to one question


@dataclass(frozen=True)
class Base:
    """Sampling parameters before a strategy changes them."""

    temperature: float = real(0)
    top_p: float = real(0, 1)
    top_k: int = whole(1, LARGEST_TOP_K)
    min_p: float = real(0, 1)


@dataclass(frozen=True)
class Thresholds:
    """Where the decision tree splits; the first strategy whose conditions hold wins."""

    low_entropy: float = threshold()
    low_varentropy: float = threshold()
    think_min_entropy: float = threshold()
    think_max_varentropy: float = threshold()
    branch_max_entropy: float = threshold()
    branch_min_varentropy: float = threshold()
    branch_max_margin: float = threshold()
    resample_min_entropy: float = threshold()
    resample_min_varentropy: float = threshold()


@dataclass(frozen=True)
class Think:
    """The thinking text, where and how often it may be inserted, and how to sample without it."""

    text: str | int | list[str | int] = ruled(check_thinking_text)
    place: str = ruled(one_of("sentence", "clause", "word"))
    not_for: list[str] = ruled(check_words)
    wait: int = whole(0)
    watch: int = whole(0, 1000)
    loop_length: int = whole(0)
    least_gain: float = threshold()
    max_insertions: int = whole(0)
    min_gap: int = whole(1)
    temperature_offset: float = real()
    temperature_slope: float = real()
    max_temperature: float = real(0)


@dataclass(frozen=True)
class RetrievalRule:
    """When a passage of the user's notes is retrieved, and how it is written into the answer."""

    when: str = ruled(one_of("lost", "start"))
    min_entropy: float = threshold()
    min_score: float = real(0, 1)
    text: str = ruled(check_passage_text)
    max_tokens: int = whole(1, 10_000)
    draft: int = whole(0, 1000)
    wait: int = whole(0)
    max_insertions: int = whole(0)
    min_gap: int = whole(1)


@dataclass(frozen=True)
class ForkRule:
    """Where forks are, how far their branches are followed, and how they are compared."""

    mode: str = ruled(one_of(MODE_TEXT, MODE_ANSWERS, MODE_LEAVES))
    trigger: str = ruled(one_of(*TRIGGERS))
    trigger_at: float = real(0)
    width: int = whole(1, 64)
    width_follows_entropy: bool = flag()
    width_min_entropy: float = real(0)
    width_entropy_span: float = real(1e-6)
    depth: int = whole(1, 1000)
    halve_from: int = whole(0)
    margin: float = real(0)
    copy_length: int = whole(0)
    ask_margin: float = real(0)
    max_branches: int = whole(0)
    min_gap: int = whole(0)

    def forks(self, decision: Decision | Step, chance: float) -> bool:
        """Return whether there is a fork at a position, with a number drawn for it from [0, 1)."""
        metrics = decision.metrics
        found = {
            BY_STRATEGY: decision.strategy is Strategy.BRANCH,
            BY_ENTROPY: metrics.entropy > self.trigger_at,
            BY_MARGIN: metrics.margin < self.trigger_at,
            BY_CHANCE: chance < self.trigger_at,
        }
        return found[self.trigger]

    def halves_at(self, length: int) -> bool:
        """Return whether the worse half of the branches is pruned after so many tokens."""
        ratio, rest = divmod(length, self.halve_from) if self.halve_from else (0, 0)
        return ratio > 0 and not rest and ratio & (ratio - 1) == 0

    def width_at(self, entropy: float) -> int:
        """Return the number of branches at an entropy in bits (arXiv 2507.03038 if it follows)."""
        if not self.width_follows_entropy:
            return self.width
        share = (entropy * math.log(2) - self.width_min_entropy) / self.width_entropy_span
        return int(1 + (self.width - 1) * min(max(share, 0.0), 1.0))

    @property
    def min_entropy(self) -> float:
        """The least entropy at which there are two branches, in bits; infinite if never."""
        if self.width < 2:
            return math.inf
        if not self.width_follows_entropy:
            return 0.0
        nats = self.width_min_entropy + self.width_entropy_span / (self.width - 1)
        return nats / math.log(2)


@dataclass(frozen=True)
class BranchStrategy(ForkRule):
    """How to fork, and how to sample where the strategy is `branch`."""

    unforked: str = ruled(one_of(UNFORKED_ARGMAX, UNFORKED_DRAW))
    temperature_offset: float = real()
    temperature_slope: float = real()
    max_temperature: float = real(0)
    top_k_slope: float = real()
    min_top_k: int = whole(1, LARGEST_TOP_K)


@dataclass(frozen=True)
class Resample:
    """How to sample where the strategy is `resample`: entropy and varentropy are high."""

    temperature_offset: float = real()
    temperature_slope: float = real()
    min_temperature: float = real(0)
    top_p_slope: float = real()
    min_top_p: float = real(0, 1)


@dataclass(frozen=True)
class Adaptive:
    """How to sample where the strategy is `adaptive`: everywhere else."""

    candidates: int = whole(1, 1000)
    temperature_logits: float = real()
    temperature_attention: float = real()
    temperature_agreement: float = real()
    top_p_slope: float = real()
    min_top_p: float = real(0, 1)
    max_top_p: float = real(0, 1)
    top_k_interaction: float = real()
    top_k_agreement: float = real()
    min_top_k: int = whole(1, LARGEST_TOP_K)
    max_top_k: int = whole(1, LARGEST_TOP_K)
    min_p_slope: float = real()
    min_min_p: float = real(0, 1)
    max_min_p: float = real(0, 1)


@dataclass(frozen=True)
class PositionScore:
    """Weights of the published score of a position; the score of a token adds its log p."""

    entropy: float = real()
    attention_entropy: float = real()
    varentropy: float = real()
    attention_varentropy: float = real()
    agreement: float = real()
    interaction_strength: float = real()

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


@dataclass(frozen=True)
class Baselines:
    """Default sampling parameters of the samplers to compare with."""

    temperature: float = real(0)
    top_p: float = real(0, 1)
    min_p: float = real(0, 1)


@dataclass(frozen=True)
class Targets:
    """What calibration solves the thresholds for."""

    argmax: float = real(0, 1)
    think: float = real(0, 1)
    branch: float = real(0, 1)
    resample: float = real(0, 1)
    price: float = real(0)


@dataclass(frozen=True)
class Abstain:
    """Which answers are called unsure, as `entropix calibrate --abstain` found it."""

    score: str = ruled(check_score)
    threshold: float = threshold()
    risk: float = real(0, 1)
    n: int = whole(0)
    task: str = ruled(check_text)

    def verdict(self, tokens: AnswerMetrics) -> Verdict | None:
        """Return whether an answer is unsure; None where the profile has no threshold."""
        if self.score == NO_SCORE:
            return None
        return Verdict(self.score, score_of(self.score, tokens), self.threshold, self.risk)


@dataclass(frozen=True)
class AnswersRule:
    """When more answers are drawn to a prompt, and how one of them is chosen."""

    threshold: float = threshold()
    count: int = whole(2, MOST_ANSWERS)
    temperature: float = real(0)
    selection: str = ruled(one_of(BEST, VOTE))
    posterior: float = real(0.5, 1)
