"""What crosses from the decode loop to every reader: `Step`, and the words it is made of.

Nothing here imports MLX: a trace can be read, drawn and reported without a model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from itertools import zip_longest
from typing import Any, Generic, NamedTuple, TypeVar

from . import old_names
from .records import from_record

T = TypeVar("T")


class Strategy(StrEnum):
    """What was decided at a position."""

    ARGMAX = "argmax"
    THINK = "think"
    THINK_SAMPLE = "think-sample"
    BRANCH = "branch"
    RESAMPLE = "resample"
    ADAPTIVE = "adaptive"
    SAMPLE = "sample"
    """Drawn by a sampler without a decision tree."""

    def sampled(self) -> Strategy:
        """Return the strategy's name where no text may be inserted: `think` samples there."""
        return Strategy.THINK_SAMPLE if self is Strategy.THINK else self


class Origin(StrEnum):
    """How a token came to stand in the text."""

    SAMPLED = "sampled"
    INSERTED = "inserted"
    """Part of a thinking text."""
    BRANCH = "branch"
    """Part of the rollout that scored best at a fork."""
    CHOSEN = "chosen"
    """Picked by the user: a rollout at a fork, or a token put in another's place."""
    RETRIEVED = "retrieved"
    """Part of a passage that was looked up in the user's notes, and of what introduces it."""
    READ = "read"
    """Part of a text that was given and only measured; nothing was drawn."""


NOT_OF_THE_MODEL = frozenset({Origin.INSERTED, Origin.RETRIEVED})
"""Origins of tokens that the model did not choose: they tell nothing about how sure it was."""


class Metrics(NamedTuple, Generic[T]):
    """The measurements of one position: `(batch,)` float32 arrays on the device, floats outside.

    A field can be read as an attribute or, as in a trace record, by its name:
    ``metrics.entropy`` and ``metrics["entropy"]`` are the same number.
    """

    entropy: T
    """H of the next-token distribution at temperature 1, in bits."""
    varentropy: T
    """Variance of the surprise −log2 p over the vocabulary, in bits²."""
    margin: T
    """Probability of the most probable token minus that of the second."""
    attention_entropy: T
    """Mean over heads of the entropy of the attention weights, in bits."""
    attention_varentropy: T
    """Population variance over heads of that entropy, in bits²."""
    agreement: T
    """Mean absolute deviation of the heads' weights from their mean: 0 when the heads agree.

    The name is the published one. It shrinks as 1/keys; see `head_divergence`."""
    head_divergence: T
    """Mean over heads of the total variation from the mean head, in [0, 1] at any length."""
    interaction_strength: T
    """Mean absolute attention score before softmax."""

    # Of a model whose attention cannot be read, all five are NaN: they were not measured.
    def __getitem__(self, key: Any) -> Any:
        """Field by name, or by position as in any tuple."""
        return getattr(self, key) if isinstance(key, str) else tuple.__getitem__(self, key)


OF_ATTENTION = Metrics._fields[3:]
"""The measurements of attention: None in a record where they were not taken."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What a profile decides for one set of logits and attention scores, in Python numbers."""

    strategy: Strategy
    temperature: float
    top_p: float
    """1 is off."""
    top_k: int
    """0 is off."""
    min_p: float
    """0 is off."""
    metrics: Metrics[float]


@dataclass(frozen=True, slots=True)
class Alternative:
    """One of the most probable tokens at a position."""

    token: int
    text: str
    logprob: float


class ChosenBy(StrEnum):
    """Who chose among the rollouts of a fork."""

    SCORE = "score"
    JUDGE = "judge"
    """The first was kept: another led, and the second opinion was against it."""
    USER = "user"


class Stopped(StrEnum):
    """Why a rollout was not followed to its end."""

    BEHIND = "behind"
    """It was among the worse half of those that might still win."""
    DECIDED = "decided"
    """Nothing that came after could change which one wins."""


@dataclass(frozen=True, slots=True)
class Branch:
    """One way to go on at a fork, as far as it was followed."""

    tokens: tuple[int, ...]
    text: str
    mean_logprob: float
    """Natural log probability a token at temperature 1."""
    mean_entropy: float
    """Bits a token."""
    first_logprob: float | None = None
    """Natural log probability of its first token at temperature 1; None in older traces."""
    lead: float | None = None
    """Nats a token by which it leads the first rollout, over the tokens that both have, where those
    that copy do not count in favour: 0 for the first itself. None in traces of version 1."""
    error: float | None = None
    """The standard error of the lead; None where it cannot be told."""
    copied: int = 0
    """Tokens that copy a run of the prompt, the answer or the rollout itself."""
    stopped: Stopped | None = None
    """Why it was not followed to its end; None for one that was."""
    judged: float | None = None
    """The model's own probability that it is good, p(yes) / (p(yes) + p(no)); None if not asked."""


@dataclass(frozen=True, slots=True)
class Fork:
    """What was compared at a fork."""

    branches: tuple[Branch, ...]
    """The one that begins with the most probable token comes first."""
    winner: int
    """Index of the rollout that became the text."""
    chosen_by: ChosenBy = ChosenBy.SCORE
    closest: float | None = None
    """Nats a token by which the nearest decision to drop a rollout was made; None without any."""
    lookahead_tokens: int = 0
    """Tokens that were computed here beside those of the rollouts, and forgotten: what followed a
    sentence, by which its end was known, and what was read for a second opinion."""


class DropReason(StrEnum):
    """Why an insertion that was tried did not become the text."""

    END = "end"
    """The answer would have ended with it."""
    ECHO = "echo"
    """What followed it repeated it."""
    LOOP = "loop"
    """What followed it repeated the answer."""
    WORSE = "worse"
    """The model went on better without it."""
    LEFT = "left"
    """It is what would have stood in the place of a thought with which the model went on better."""
    LOST = "lost"
    """It was the beginning of a sentence, and the model did not know how to go on."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """What was tried and taken back: an insertion with the tokens that followed it, what would have
    stood in its place, or a sentence in the place of which a passage was looked up."""

    origin: Origin
    """What its tokens would have been."""
    tokens: tuple[int, ...]
    text: str
    reason: DropReason


@dataclass(frozen=True, slots=True)
class Source:
    """Where a passage stands in the user's notes."""

    name: str
    """Of the file, relative to the folder of the notes, with slashes."""
    line: int
    """Of its first word, from 1; in a PDF file, on the page."""
    page: int | None = None
    """In a PDF file, from 1."""
    heading: str = ""
    """Of the section."""

    @property
    def label(self) -> str:
        """The source for people: ``harbour.md, line 3``."""
        page = f", page {self.page}" if self.page is not None else ""
        return f"{self.name}{page}, line {self.line}"


@dataclass(frozen=True, slots=True)
class Passage:
    """A passage of the user's notes that may be put into an answer."""

    text: str
    source: Source
    score: float
    """How much of what was looked for it holds, from 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One committed token, with all that was measured and decided where it stands."""

    index: int
    """Position in the answer, from 0."""
    token: int
    text: str
    """Text that became printable with this token: empty inside a multi-byte character."""
    logprob: float
    """Natural log probability of the token at temperature 1, before any filter."""
    entropy: float
    varentropy: float
    margin: float
    attention_entropy: float
    attention_varentropy: float
    agreement: float
    head_divergence: float
    interaction_strength: float
    position_score: float
    """The published weighted sum of the metrics ("confidence" in the published sampler): logprob +
    position_score compares tokens of different positions."""
    strategy: Strategy
    """What was decided here; all tokens of an inserted text say `think`, wherever it was wished
    for, and `think-sample` says that the wish has to wait, or may not be. Whether a fork was
    followed where it says `branch`, or only sampled, is in `branch` and `origin`."""
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    origin: Origin = Origin.SAMPLED
    top_logprobs: tuple[Alternative, ...] = ()
    """The most probable tokens, best first, when asked for."""
    fork: Fork | None = None
    """On the first token of a rollout: what it was compared with."""
    rolled_back: int = 0
    """Tokens that were drawn here and taken back: 1 where an intervention came between."""
    triggered_at: int | None = None
    """On the first token of an inserted text: index of the step at which it was wished for."""
    dropped: Dropped | None = None
    """What was inserted here on trial, and not kept; the text goes on as if it had not been."""
    source: Source | None = None
    """On the first token of a retrieved passage: where that stands."""
    proposed: int = field(default=0, compare=False)
    """Tokens that were looked up in the text and computed in the same pass, to follow this one."""
    accepted: int = field(default=0, compare=False)
    """1 where the pass of an earlier token computed this one, too, because that was guessed right;
    all other tokens took a pass of their own."""
    finish_reason: str | None = None
    """On the last step: ``"stop"`` (end of text), ``"length"`` (a limit was reached) or ``"read"``
    (the end of a text that was given)."""
    time: float = field(default=0.0, compare=False)
    """Seconds since generation began, prefill included, but not what a user took to choose. Where
    an answer is taken up again in its middle, the time goes on from there."""

    @property
    def metrics(self) -> Metrics[float]:
        """The step's measurements as one record."""
        return Metrics(*(getattr(self, name) for name in Metrics._fields))

    def to_dict(self) -> dict[str, Any]:
        """Return the step as one flat JSON-ready record; floats have the 7 digits of a float32.

        What was not measured is None.
        """
        record: dict[str, Any] = _rounded(asdict(self))
        return record

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> Step:
        """Return the step of a record that `to_dict` made.

        Raises:
            ValueError: a field is missing or has another type; fields of a later version are
                ignored.
        """
        absent = [name for name in OF_ATTENTION if record.get(name, 0) is None]
        step = from_record(cls, old_names.of_step(record) | dict.fromkeys(absent, 0.0))
        if absent:
            step = replace(step, **dict.fromkeys(absent, math.nan))  # type: ignore[arg-type]
        if step.fork and not 0 <= step.fork.winner < len(step.fork.branches):
            raise ValueError(f"fork.winner is {step.fork.winner}, and there is no such rollout")
        return step


def first_divergence(first: Sequence[Step], second: Sequence[Step]) -> int | None:
    """Return the index of the first token that two answers do not share; None if all are alike."""
    tokens = zip_longest(*([step.token for step in steps] for steps in (first, second)))
    return next((index for index, (one, other) in enumerate(tokens) if one != other), None)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return None if math.isnan(value) else float(f"{value:.7g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(item) for item in value]
    return value
