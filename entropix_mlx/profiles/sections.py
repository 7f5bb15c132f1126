"""The sections of a profile: its fields, what each means, and what each may hold."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..step import Decision, Metrics, Strategy
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
NO_JUDGE, YES_NO = "none", "yes-no"
JUDGES = (NO_JUDGE, YES_NO)
"""Who is asked for a second opinion before another branch than the first is taken."""


@dataclass(frozen=True)
class Base:
    """Sampling parameters before a strategy changes them."""

    temperature: float = real(0)
    """0 takes the most probable token."""
    top_p: float = real(0, 1)
    """Keep the most probable tokens that reach this mass."""
    top_k: int = whole(1, LARGEST_TOP_K)
    """Keep this many of the most probable tokens."""
    min_p: float = real(0, 1)
    """Keep tokens of at least this share of the top probability."""


@dataclass(frozen=True)
class Thresholds:
    """Where the decision tree splits; the first strategy whose conditions hold wins."""

    low_entropy: float = threshold()
    """`argmax` where the entropy is below this, in bits, and …"""
    low_varentropy: float = threshold()
    """… the varentropy below this, in bits²."""
    think_min_entropy: float = threshold()
    """`think` where the entropy is above this, in bits, and …"""
    think_max_varentropy: float = threshold()
    """… the varentropy below this, in bits²."""
    branch_max_entropy: float = threshold()
    """`branch` where the entropy is below this, in bits, …"""
    branch_min_varentropy: float = threshold()
    """… the varentropy above this, in bits², and …"""
    branch_max_margin: float = threshold()
    """… the margin below this, a probability."""
    resample_min_entropy: float = threshold()
    """`resample` where the entropy is above this, in bits, and …"""
    resample_min_varentropy: float = threshold()
    """… the varentropy above this, in bits²."""


@dataclass(frozen=True)
class Think:
    """The thinking text, where and how often it may be inserted, and how to sample without it."""

    text: str | int | list[str | int] = ruled(check_thinking_text)
    """What is inserted: a text, a token id, or a list of them."""
    place: str = ruled(one_of("sentence", "clause", "word"))
    """At the start of a sentence, also after a comma, or between any two words; only in prose."""
    not_for: list[str] = ruled(check_words)
    """Nothing is inserted where the request holds one of these words."""
    wait: int = whole(0)
    """Tokens for which an insertion waits for such a place."""
    watch: int = whole(0, 1000)
    """Tokens after the insertion that are generated before it is accepted."""
    loop_length: int = whole(0)
    """It is dropped where a run of this many of them is a repetition of the answer."""
    least_gain: float = threshold()
    """It is dropped where they gain less than this over an answer without it: nats a token, the
    mean of more log p and less entropy; -inf: not compared."""
    max_insertions: int = whole(0)
    """Insertions an answer."""
    min_gap: int = whole(1)
    """Tokens between two insertions."""
    temperature_offset: float = real()
    """Without insertion, T′ = min(max_temperature, T (offset + slope · attention entropy))."""
    temperature_slope: float = real()
    """Per bit of attention entropy."""
    max_temperature: float = real(0)
    """The highest T′."""


@dataclass(frozen=True)
class RetrievalRule:
    """When a passage of the user's notes is retrieved, and how it is written into the answer."""

    when: str = ruled(one_of("lost", "start"))
    """Where the entropy is high, or before the answer."""
    min_entropy: float = threshold()
    """The entropy that is high, in bits."""
    min_score: float = real(0, 1)
    """The share of the query's words, weighted by rarity, that a passage must hold."""
    text: str = ruled(check_passage_text)
    """How a passage is written into the answer."""
    max_tokens: int = whole(1, 10_000)
    """Tokens of a passage; the rest is left out."""
    draft: int = whole(0, 1000)
    """Tokens of a sentence that are held back so that a passage can precede it; 0: it follows."""
    wait: int = whole(0)
    """Tokens for which a passage that has to follow waits for the end of the sentence."""
    max_insertions: int = whole(0)
    """Passages an answer."""
    min_gap: int = whole(1)
    """Tokens between two passages."""


@dataclass(frozen=True)
class ForkRule:
    """Where forks are, how far their branches are followed, and how they are compared."""

    trigger: str = ruled(one_of(*TRIGGERS))
    """Fork where the strategy is `branch`, by entropy, by a small margin, or by chance."""
    trigger_at: float = real(0)
    """The entropy in bits, the margin, or the share of positions; unused for the strategy."""
    width: int = whole(1, 64)
    """Branches of a fork; the first begins with the most probable token, the others are drawn."""
    width_follows_entropy: bool = flag()
    """Use int(1 + (width − 1) · clip((H − min_entropy) / entropy_span, 0, 1)) branches."""
    width_min_entropy: float = real(0)
    """Nats: the entropy up to which there is one branch, where the width follows it."""
    width_entropy_span: float = real(1e-6)
    """Nats above that until all branches are used."""
    depth: int = whole(1, 1000)
    """Tokens of a branch, at most; the end of a sentence ends it, too."""
    halve_from: int = whole(0)
    """The worse half of the branches is pruned after this many tokens, twice, four times as many,
    and so on; 0: never."""
    margin: float = real(0)
    """Standard errors by which a branch must lead the first to win."""
    copy_length: int = whole(0)
    """A token that completes a copy of this many earlier tokens does not count in favour; 0: it
    does."""
    judge: str = ruled(one_of(*JUDGES))
    judge_text: str = ruled(check_text)
    judge_yes: str = ruled(check_text)
    judge_no: str = ruled(check_text)
    ask_margin: float = real(0)
    """Standard errors; with `--ask`, the user decides where no lead exceeds them."""
    max_branches: int = whole(0)
    """Forks an answer."""
    min_gap: int = whole(0)
    """Tokens between two forks."""

    def forks(self, decision: Decision, chance: float) -> bool:
        """Tell whether there is a fork at a position, with a number drawn for it from [0, 1)."""
        metrics = decision.metrics
        found = {
            BY_STRATEGY: decision.strategy is Strategy.BRANCH,
            BY_ENTROPY: metrics.entropy > self.trigger_at,
            BY_MARGIN: metrics.margin < self.trigger_at,
            BY_CHANCE: chance < self.trigger_at,
        }
        return found[self.trigger]

    def halves_at(self, length: int) -> bool:
        """Tell whether the worse half of the branches is pruned after so many tokens."""
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

    temperature_offset: float = real()
    """Without a fork, T′ = min(max_temperature, T (offset + slope · interaction strength))."""
    temperature_slope: float = real()
    """Per unit of interaction strength."""
    max_temperature: float = real(0)
    """The highest T′."""
    top_k_slope: float = real()
    """Without a fork, top_k′ = max(min_top_k, ⌊top_k (1 + slope · (1 − agreement))⌋)."""
    min_top_k: int = whole(1, LARGEST_TOP_K)
    """The lowest top_k′."""


@dataclass(frozen=True)
class Resample:
    """How to sample where the strategy is `resample`: entropy and varentropy are high."""

    temperature_offset: float = real()
    """T′ = max(min_temperature, T (offset + slope · attention varentropy))."""
    temperature_slope: float = real()
    """Per bit² of attention varentropy."""
    min_temperature: float = real(0)
    """The lowest T′."""
    top_p_slope: float = real()
    """top_p′ = max(min_top_p, top_p − slope · attention entropy); per bit."""
    min_top_p: float = real(0, 1)
    """The lowest top_p′."""
    excludes_top: bool = flag()
    """Whether the most probable token may not be drawn."""


@dataclass(frozen=True)
class Adaptive:
    """How to sample where the strategy is `adaptive`: everywhere else."""

    candidates: int = whole(1, 1000)
    """Tokens drawn; the one of highest score is taken."""
    temperature_logits: float = real()
    """T′ rises by this share of T per bit of entropy and bit² of varentropy."""
    temperature_attention: float = real()
    """T′ rises by this share of T per bit of attention entropy and bit² of attention varentropy."""
    temperature_agreement: float = real()
    """T′ falls by this share of T times the agreement."""
    top_p_slope: float = real()
    """top_p′ rises by this share of top_p per bit² of attention varentropy."""
    min_top_p: float = real(0, 1)
    """The lowest top_p′."""
    max_top_p: float = real(0, 1)
    """The highest top_p′."""
    top_k_interaction: float = real()
    """top_k′ rises by this share of top_k per unit of interaction strength."""
    top_k_agreement: float = real()
    """top_k′ falls by this share of top_k times the agreement."""
    min_top_k: int = whole(1, LARGEST_TOP_K)
    """The lowest top_k′."""
    max_top_k: int = whole(1, LARGEST_TOP_K)
    """The highest top_k′."""
    min_p_slope: float = real()
    """min_p′ falls by this share of min_p per bit of entropy and bit² of varentropy."""
    min_min_p: float = real(0, 1)
    """The lowest min_p′."""
    max_min_p: float = real(0, 1)
    """The highest min_p′."""


@dataclass(frozen=True)
class PositionScore:
    """Weights of the published score of a position; the score of a token adds its log p."""

    entropy: float = real()
    """Weight of 1 − entropy."""
    attention_entropy: float = real()
    """Weight of 1 − attention entropy."""
    varentropy: float = real()
    """Weight of 1 − varentropy."""
    attention_varentropy: float = real()
    """Weight of 1 − attention varentropy."""
    agreement: float = real()
    """Weight of the agreement."""
    interaction_strength: float = real()
    """Weight of the interaction strength."""

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
    """Of all of them."""
    top_p: float = real(0, 1)
    """Of the sampler `top_p`."""
    min_p: float = real(0, 1)
    """Of the samplers `min_p` and `adaptive_p`."""


@dataclass(frozen=True)
class Targets:
    """What calibration solves the thresholds for."""

    argmax: float = real(0, 1)
    """Share of tokens."""
    think: float = real(0, 1)
    """Share of tokens, without those that are inserted."""
    branch: float = real(0, 1)
    """Share of tokens, at most: forks are only where they gain their price."""
    resample: float = real(0, 1)
    """Share of tokens, at most."""
    price: float = real(0)
    """Nats of log p that a forward token must gain."""


@dataclass(frozen=True)
class Abstain:
    """Which answers are called unsure, as `entropix calibrate --abstain` found it."""

    score: str = ruled(check_score)
    """One of `SCORES` in profiles/confidence.py; "none": no answer is called unsure."""
    threshold: float = threshold()
    """Answers with a lower score are unsure."""
    risk: float = real(0, 1)
    """At most this share of the other answers was wrong."""
    n: int = whole(0)
    """Answers that the threshold was found with."""
    task: str = ruled(check_text)
    """The task whose questions they answer."""

    def verdict(self, tokens: AnswerMetrics) -> Verdict | None:
        """Return whether an answer is unsure; None where the profile has no threshold."""
        if self.score == NO_SCORE:
            return None
        return Verdict(self.score, score_of(self.score, tokens), self.threshold, self.risk)
