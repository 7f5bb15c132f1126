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
    """Drawn."""
    INSERTED = "inserted"
    """Part of a thought."""
    BRANCH = "branch"
    """Part of the winning branch of a fork."""
    CHOSEN = "chosen"
    """Chosen by the user: a branch of a fork, or a token in place of another."""
    RETRIEVED = "retrieved"
    """Part of a passage of the user's notes, or of the words that introduce it."""
    READ = "read"
    """Part of a given text that was only measured."""


NOT_OF_THE_MODEL = frozenset({Origin.INSERTED, Origin.RETRIEVED})
"""Origins of tokens that the model did not choose: they say nothing about its confidence."""


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
    """With which the token is drawn."""
    top_p: float
    """Probability mass that is kept; 1 is off."""
    top_k: int
    """Tokens that are kept; 0 is off."""
    min_p: float
    """Smallest probability that is kept, as a share of the highest; 0 is off."""
    metrics: Metrics[float]


@dataclass(frozen=True, slots=True)
class Alternative:
    """One of the most probable tokens at a position."""

    token: int
    """Token id."""
    text: str
    """The token alone, as text."""
    logprob: float
    """Natural log probability at temperature 1."""


class ChosenBy(StrEnum):
    """Who chose among the branches of a fork."""

    SCORE = "score"
    """The comparison of the branches."""
    JUDGE = "judge"
    """The first was kept: another led, and the second opinion was against it."""
    USER = "user"
    """The user."""


class Stopped(StrEnum):
    """Why a branch was not followed to its end."""

    BEHIND = "behind"
    """It was in the worse half of the branches that could still win."""
    DECIDED = "decided"
    """The winner could not change any more."""


@dataclass(frozen=True, slots=True)
class Branch:
    """One continuation at a fork, as far as it was followed."""

    tokens: tuple[int, ...]
    """Token ids."""
    text: str
    """Their text."""
    mean_logprob: float
    """Mean natural log probability of a token at temperature 1."""
    mean_entropy: float
    """Mean entropy at its tokens, in bits."""
    first_logprob: float | None = None
    """Natural log probability of its first token at temperature 1; None in older traces."""
    lead: float | None = None
    """Mean lead over the first branch, in nats a token: 0 for the first itself, None in traces of
    version 1."""
    error: float | None = None
    """Standard error of the lead; None if it cannot be computed."""
    copied: int = 0
    """Tokens that complete a copied run and cannot count in the branch's favour."""
    stopped: Stopped | None = None
    """Why it was not followed to its end; None if it was."""
    judged: float | None = None
    """The model's own probability that it is good, p(yes) / (p(yes) + p(no)); None if not asked."""


@dataclass(frozen=True, slots=True)
class Fork:
    """What was compared at a fork."""

    branches: tuple[Branch, ...]
    """The branch that begins with the most probable token comes first."""
    winner: int
    """Index of the branch that became the text."""
    chosen_by: ChosenBy = ChosenBy.SCORE
    """Who chose the winner."""
    closest: float | None = None
    """Margin of the closest decision to prune a branch, in nats a token; None without any."""
    lookahead_tokens: int = 0
    """Tokens computed beside those of the branches, and discarded: those that showed where a
    sentence ends."""


class DropReason(StrEnum):
    """Why tokens on trial did not become the text."""

    END = "end"
    """The answer would have ended with the insertion."""
    ECHO = "echo"
    """The model repeated the insertion."""
    LOOP = "loop"
    """The model repeated the answer."""
    WORSE = "worse"
    """The continuation with the insertion scored below the one without it."""
    LEFT = "left"
    """The continuation without the thought, which scored below the one with it."""
    LOST = "lost"
    """A sentence in which the model was lost, replaced by a passage."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """Tokens on trial that were discarded: an insertion with the tokens after it, the continuation
    without it, or a sentence that a passage replaced."""

    origin: Origin
    """The origin that the tokens would have had."""
    tokens: tuple[int, ...]
    """Token ids."""
    text: str
    """Their text."""
    reason: DropReason
    """Why they were discarded."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a passage stands in the user's notes."""

    name: str
    """Path of the file, relative to the folder of notes."""
    line: int
    """Line of the passage's first word, from 1; in a PDF file, on its page."""
    page: int | None = None
    """Page of a PDF file, from 1."""
    heading: str = ""
    """Heading of the section."""

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
    """Share of the query's words that it holds, weighted by rarity, from 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One committed token, with all that was measured and decided where it stands."""

    index: int
    """Position in the answer, from 0."""
    token: int
    """Token id."""
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
    """The published weighted sum of the metrics, there called confidence. Positions can be compared
    by logprob + position_score."""
    strategy: Strategy
    """The decision. All tokens of a thought have `think`; `think-sample` is a thought that has to
    wait or is not allowed. `origin` and `fork` say whether a fork was followed at `branch`."""
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    origin: Origin = Origin.SAMPLED
    """Where the token came from."""
    top_logprobs: tuple[Alternative, ...] = ()
    """The most probable tokens, best first, if requested."""
    fork: Fork | None = None
    """On the first token of a winning branch: the comparison."""
    rolled_back: int = 0
    """Drawn tokens taken back here: 1 where an intervention begins."""
    triggered_at: int | None = None
    """On the first token of an insertion: index of the step that triggered it."""
    dropped: Dropped | None = None
    """Tokens on trial here that were discarded."""
    source: Source | None = None
    """On the first token of a retrieved passage: where it stands in the notes."""
    proposed: int = field(default=0, compare=False)
    """Tokens that speculation proposed after this one, computed in the same pass."""
    accepted: int = field(default=0, compare=False)
    """1 if this token was proposed and accepted, so that it took no pass of its own, else 0."""
    finish_reason: str | None = None
    """On the last step: ``"stop"`` (end of text or a stop string), ``"length"`` (a limit) or
    ``"read"`` (end of a given text)."""
    time: float = field(default=0.0, compare=False)
    """Seconds since generation began, prefill included, the time for a user's choices excluded."""

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
            raise ValueError(f"fork.winner is {step.fork.winner}, and there is no such branch")
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
