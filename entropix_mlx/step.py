"""`Step`, the record of a token that every reader gets, and the records that it is made of.

Nothing here imports MLX: a trace can be read, drawn and reported without a model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from .records import Measured, from_record

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

T = TypeVar("T")

LOOP = "loop"
"""Why an answer was ended, in `Step.stopped`."""


class Strategy(StrEnum):
    """The decision at a position."""

    ARGMAX = "argmax"
    THINK = "think"
    THINK_SAMPLE = "think-sample"
    BRANCH = "branch"
    RESAMPLE = "resample"
    ADAPTIVE = "adaptive"
    SAMPLE = "sample"  # drawn by a sampler without a decision tree

    def sampled(self) -> Strategy:
        """Return the strategy's name where no text may be inserted: `think` samples there."""
        return Strategy.THINK_SAMPLE if self is Strategy.THINK else self


class Origin(StrEnum):
    """Where a token came from."""

    SAMPLED = "sampled"
    """Drawn from the distribution."""
    INSERTED = "inserted"
    """Part of a thought."""
    BRANCH = "branch"
    """Part of the branch that won a fork."""
    CHOSEN = "chosen"
    """Chosen by the user: a branch of a fork, or a token in place of another."""
    RETRIEVED = "retrieved"
    """Part of a passage of the user's notes, or of the words that introduce it."""
    READ = "read"
    """Part of a given text, which was only measured."""


NOT_OF_THE_MODEL = frozenset({Origin.INSERTED, Origin.RETRIEVED})
"""Origins of tokens that the model did not choose."""


class Metrics(NamedTuple, Generic[T]):
    """The metrics of one position: `(batch,)` float32 arrays on the device, floats on the host.

    A field can be read as an attribute or, as in a trace record, by its name:
    ``metrics.entropy`` and ``metrics["entropy"]`` are the same number. The five of attention are
    NaN for a model whose attention cannot be read.
    """

    entropy: T
    """H of the next-token distribution at temperature 1, in bits."""
    varentropy: T
    """V, the variance of the surprise −log2 p over the vocabulary, in bits²."""
    margin: T
    """Probability of the most probable token minus that of the second."""
    attention_entropy: T
    """Mean over heads of the entropy of the attention weights, in bits."""
    attention_varentropy: T
    """Population variance over heads of that entropy, in bits²."""
    agreement: T
    """Mean absolute deviation of the heads' weights from their mean: 0 where they agree. The name
    is the published one. It shrinks as 1/keys; see `head_divergence`."""
    head_divergence: T
    """Mean over heads of the total variation from the mean head, in [0, 1] at any length."""
    interaction_strength: T
    """Mean absolute attention score before softmax."""

    def __getitem__(self, key: Any) -> Any:
        """Field by name, or by position as in any tuple."""
        return getattr(self, key) if isinstance(key, str) else tuple.__getitem__(self, key)


OF_ATTENTION = Metrics._fields[3:]
"""The metrics of attention: None in a record where they were not measured."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision at one position, in Python numbers."""

    strategy: Strategy
    temperature: float
    top_p: float  # 1 is off
    top_k: int  # 0 is off
    min_p: float  # 0 is off
    metrics: Metrics[float]


@dataclass(frozen=True, slots=True)
class Alternative:
    """One of the most probable tokens at a position."""

    token: int
    text: str
    logprob: float  # natural log probability at temperature 1


class ChosenBy(StrEnum):
    """Who chose among the branches of a fork."""

    SCORE = "score"
    USER = "user"


@dataclass(frozen=True, slots=True)
class Branch:
    """One continuation at a fork, as far as it was followed."""

    tokens: tuple[int, ...]
    text: str
    mean_logprob: float  # nats a token, at temperature 1
    mean_entropy: float  # bits a token
    first_logprob: float | None = None  # nats, of its first token; None where unknown
    lead: float | None = None
    """Nats a token by which it leads the first branch, over the tokens that both have: 0 for the
    first branch."""
    error: float | None = None  # standard error of the lead; None where it is unknown


@dataclass(frozen=True, slots=True)
class Fork:
    """The branches that were compared at a position, and the winner."""

    branches: tuple[Branch, ...]  # the one that begins with the most probable token comes first
    winner: int
    chosen_by: ChosenBy = ChosenBy.SCORE
    lookahead_tokens: int = 0  # computed beside the branches, to see where a sentence ends

    def __post_init__(self) -> None:
        if not 0 <= self.winner < len(self.branches):
            raise ValueError(f"winner is {self.winner}, and there is no such branch")


@dataclass(frozen=True, slots=True)
class Source:
    """The place of a passage in the user's notes."""

    name: str  # path of the file relative to the folder of the notes, with slashes
    line: int  # line of its first word, from 1; in a PDF file, on the page
    page: int | None = None  # page of a PDF file, from 1
    heading: str = ""  # heading of its section; empty without one

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
    score: float  # share of the query's words that it holds, weighted by rarity: 0 to 1


class DrawCandidate(NamedTuple):
    """A token and its probability at each step, from 0 to 1."""

    token: int
    model: float
    adjusted: float  # after biases, penalties and a constraint
    tempered: float  # after the temperature
    drawn: float  # after the filters: what the token was drawn from
    removed_by: str  # the step that removed it; empty for one that could be drawn


class DrawDistribution(NamedTuple):
    """The candidates, the most probable first, and the share that each step removed of all."""

    candidates: tuple[DrawCandidate, ...]
    removed: Mapping[str, float]


class AttentionMap(NamedTuple):
    """How much of its attention the position of a token gave to each token before it."""

    texts: tuple[str, ...]  # of the tokens of the prompt and of the answer before it
    prompt: int  # tokens of the prompt
    layers: tuple[NDArray[np.float32], ...]  # (heads, tokens) each; the shares of a head sum to 1

    def shares(self, layer: int | None = None, head: int | None = None) -> list[float]:
        """Return the share of each token: of a layer, or of all, and of a head, or their mean.

        Raises:
            IndexError: there is no such layer or head.
        """
        read = self.layers if layer is None else [self.layers[layer]]
        rows = [each.mean(axis=0) if head is None else each[head] for each in read]
        return [float(share) for share in sum(rows) / len(rows)]


@dataclass(frozen=True)
class Attended:
    """What one token looked at, in the mean of all layers and heads; the rest of 1 was cut."""

    index: int  # of the step
    prompt: float  # share of all tokens of the prompt together
    tokens: list[list[float]]  # index and share of the answer's tokens, the largest shares first


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One committed token, with the metrics and the decision of its position."""

    index: int
    """Position in the answer, from 0."""
    token: int
    text: str
    """Text that became printable with this token; empty inside a multi-byte character."""
    logprob: float
    """Nats, at temperature 1 and before any filter."""
    # The fields of `Metrics`, which documents them.
    entropy: float
    varentropy: float
    margin: float
    attention_entropy: Measured
    attention_varentropy: Measured
    agreement: Measured
    head_divergence: Measured
    interaction_strength: Measured
    position_score: float
    """The published weighted sum of the metrics; logprob + position_score compares tokens of
    different positions."""
    strategy: Strategy
    """The decision. All tokens of an inserted text have `think`; `think-sample` means that an
    insertion has to wait, or is not allowed. Whether `branch` forked here is in `fork`."""
    temperature: float  # 0 takes the most probable token
    top_p: float  # 1 is off
    top_k: int  # 0 is off
    min_p: float  # 0 is off
    origin: Origin = Origin.SAMPLED
    strain: float | None = None
    """Bits: −log2 of the probability that the model gave to all tokens that a constraint allowed
    here. 0 where it changed nothing, None where there was none."""
    allowed: tuple[Alternative, ...] = ()
    """Under a constraint, the most probable of the allowed tokens, best first; their log
    probabilities are those given that the token is allowed."""
    top_logprobs: tuple[Alternative, ...] = ()  # the most probable tokens, best first, if asked for
    fork: Fork | None = None
    """On the first token of the winner of a fork: the branches that were compared."""
    rolled_back: int = 0
    """Tokens that were drawn here and discarded: 1 where an intervention begins."""
    triggered_at: int | None = None
    """On the first token of an inserted text: index of the step that triggered it."""
    source: Source | None = None
    """On the first token of a retrieved passage: its place in the notes."""
    proposed: int = field(default=0, compare=False)
    """Tokens that speculation proposed to follow this one, and that its pass computed."""
    accepted: int = field(default=0, compare=False)
    """1 where speculation had proposed this token rightly, so that it took no pass of its own."""
    finish_reason: str | None = None
    """On the last step: ``"stop"`` (end of text), ``"length"`` (a limit was reached) or ``"read"``
    (the end of a given text)."""
    stopped: str | None = None
    """On the last step: ``"loop"`` where the answer was ended because it repeated itself."""
    time: float = field(default=0.0, compare=False)
    """Seconds since generation began, prefill included, without the time that a user took to
    choose; an answer that is resumed in its middle continues from the time there."""

    @property
    def metrics(self) -> Metrics[float]:
        return Metrics(*(getattr(self, name) for name in Metrics._fields))

    @property
    def allowed_logprob(self) -> float:
        """Nats, at temperature 1, given that the token is one that a constraint allows."""
        return self.logprob + (self.strain or 0.0) * math.log(2)

    def to_dict(self) -> dict[str, Any]:
        """Return a flat JSON-ready record: floats have the 7 digits of a float32, NaN is None."""
        record: dict[str, Any] = _rounded(asdict(self))
        return record

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> Step:
        """Return the step of a record that `to_dict` made.

        Raises:
            ValueError: a field is missing or has another type; fields of a later version are
                ignored.
        """
        return from_record(cls, record)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return None if math.isnan(value) else float(f"{value:.7g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(item) for item in value]
    return value
