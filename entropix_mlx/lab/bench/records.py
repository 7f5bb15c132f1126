"""The records of the bench: how much to measure, and what was found."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Effort:
    """How much is measured. Contexts, prompts and depths are in tokens."""

    contexts: tuple[int, ...] = (128, 1024, 4096, 8000)
    """Tokens in the cache where decoding is measured; those a model cannot hold are left out."""
    tokens: int = 10
    """Tokens of a decoding run after its first."""
    repeats: int = 4
    """How often a decoding run is repeated."""
    intervention_repeats: int = 2
    """How often one with forks and insertions is repeated; these take seconds each on a CPU."""
    prompt: int = 128
    """Tokens of the prompt that is computed without a cache."""
    history: int = 1024
    """Tokens of the cached conversation."""
    question: int = 16
    """Tokens that follow the cached conversation."""
    prompt_repeats: int = 3
    vocabularies: tuple[int, ...] = (32_000, 49_152, 128_256)
    candidates: tuple[int, ...] = (10, 27, 100)
    """Values of top-k."""
    draws: int = 20
    """Tokens drawn in a run of the sampler alone."""
    draw_repeats: int = 11
    widths: tuple[int, ...] = (1, 2, 4, 5, 8)
    """ForkRule of a fork."""
    depth: int = 16
    prefix: int = 1024
    """Tokens before a fork, or fewer if the model cannot hold so many."""
    fork_repeats: int = 2
    rows: tuple[int, ...] = (1, 8)
    """Answers at once."""
    batch_repeats: int = 3
    """How often a run of many answers is repeated; their prompts have `prompt` tokens."""
    passes: tuple[int, ...] = (1, 2, 4, 8, 16)
    """Tokens that one pass computes."""
    lookup_tokens: int = 64
    """Tokens of an answer in which the next ones are looked up."""
    lookup_samplers: tuple[str, ...] = ("greedy", "entropix")
    lookup_repeats: int = 2
    starts: int = 3
    """Times that each program is started from the shell."""


FULL = Effort()
QUICK = Effort(
    contexts=(128, 2048),
    tokens=6,
    repeats=3,
    intervention_repeats=1,
    prompt=24,
    prompt_repeats=2,
    vocabularies=(49_152,),
    candidates=(27, 100),
    draw_repeats=5,
    widths=(5,),
    depth=5,
    fork_repeats=1,
    batch_repeats=1,
    lookup_tokens=32,
    lookup_samplers=("greedy",),
    lookup_repeats=1,
    starts=1,
)


@dataclass(frozen=True)
class Ratio:
    """A figure divided by another contender's, both measured in the same repeat."""

    other: str
    """The other contender's name."""
    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Figure:
    """What one contender reached in one case: the median over the repeats, and their range."""

    section: str
    case: str
    """What was varied: a context, a vocabulary, a number of rollouts."""
    name: str
    """The contender's name."""
    unit: str
    median: float
    low: float
    high: float
    repeats: int
    ratios: tuple[Ratio, ...] = ()
    note: str = ""
    """What else the figure depends on."""


@dataclass(frozen=True)
class Machine:
    """Where the figures come from."""

    system: str
    processor: str
    cores: int
    device: str
    """What MLX computes on."""
    mlx: str
    """Version; likewise `mlx_lm`."""
    mlx_lm: str
    copy_bandwidth: float
    """GB/s, read and written together, while a large array is copied."""


@dataclass(frozen=True)
class Report:
    """All figures of a run."""

    machine: Machine
    effort: Effort
    seconds: float
    """How long the run took."""
    rows: tuple[Figure, ...]
    """One a line of the table, in its order."""

    def to_dict(self) -> dict[str, Any]:
        """Return everything as one JSON-ready record."""
        return asdict(self)
