"""Thresholds that learn a model: what its tokens measure is counted while it is used.

The published thresholds fit few models. So the chat, the server and batches count the tokens of a
model that has no profile, in bins of entropy, varentropy, margin and the spread of attention. A
file of a few kilobytes holds the counts of a model, and nothing of any text. After `ENOUGH` tokens
it is full, and thresholds are solved from it. They are used once the user accepts them: until then
the same seed gives the same text.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .. import limits
from ..errors import ProfileError
from ..files import write_whole
from ..models.config import ModelShape, fingerprint
from ..profiles.profile import Profile, profile_for, user_folder
from ..profiles.thresholds import INTERVENTIONS_OFF, Floats, fitted
from ..profiles.tree import TREE_SAMPLER
from ..profiles.writing import prepare, write_profile
from ..step import Origin, Step

if TYPE_CHECKING:
    from ..engine.sequence import Sequence
    from ..models.base import LanguageModel

ENOUGH = 500
"""Tokens from which thresholds are solved; no more are counted."""
RARELY = 100
"""Tokens between two writes of the file, within an answer."""
LEAST = (("think", 0.05), ("resample", 0.05))
"""Shares of tokens, where the profile's targets are lower: fewer of 500 place no threshold."""
BINS = 64.0
"""In a unit of a measurement's logarithm, or of its logit where it has a largest value."""
SMALLEST = 1e-6
OFFER = "thresholds for this model are ready: entropix calibrate --learned uses them from now on"
NOT_MEASURED = -10_000
"""The bin of attention where that cannot be measured."""

Cell = tuple[int, int, int, int]
"""Bins of the entropy, the varentropy, the margin and the spread of attention of a token."""


class TokenCounts:
    """How many tokens of a model fell into each cell.

    Several processes may count the same model: each adds its counts to the file, which is replaced
    as a whole. Two that write at the same moment lose some counts, and nothing else.
    """

    def __init__(self, config: ModelShape, on_ready: Callable[[], None] | None = None) -> None:
        """Read the counts of a model, and call `on_ready` once there come to be enough."""
        import platformdirs

        self.config = config
        self._highest = math.log2(config.vocab_size)
        name = hashlib.sha256(fingerprint(config).encode()).hexdigest()[:16]
        folder = platformdirs.user_data_path("entropix_mlx", appauthor=False) / "thresholds"
        self.file = folder / f"{name}.json"
        self._new: Counter[Cell] = Counter()
        self._on_ready = on_ready
        self.tokens = self._read().total()

    @property
    def ready(self) -> bool:
        return self.tokens >= ENOUGH

    def add(self, steps: Iterable[tuple[Sequence, Step]]) -> None:
        """Count the tokens that were drawn with published thresholds."""
        for sequence, step in steps:
            if self.ready:
                return
            sampler = sequence.resolved.sampler
            published = sampler.name == TREE_SAMPLER and not sampler.profile.calibration
            if published and step.origin is Origin.SAMPLED:
                self._new[self._cell(step)] += 1
            if self._new and (step.finish_reason or self._new.total() >= RARELY):
                self._save()

    def profile(self, name: str) -> Profile | None:
        """Return a profile with thresholds that fit the tokens; None while they are too few."""
        if not self.ready:
            return None
        published = Profile.load()
        targets = {share: max(least, getattr(published.targets, share)) for share, least in LEAST}
        base = published.replace(INTERVENTIONS_OFF | {"targets": targets})
        record = {
            "model": name,
            "fingerprint": fingerprint(self.config),
            "source": "tokens that were measured while the model was used",
            "tokens": self.tokens,
        }
        described = {
            "name": f"{name.lower()}-learned",
            "description": f"Thresholds learned from {name}.",
            "targets": published.targets.model_dump(),
            "calibration": record,
        }
        return fitted(base, self._values()).replace(described)

    def accept(self, name: str) -> Path:
        """Write the thresholds as a profile, which ``--profile auto`` finds from now on.

        Returns its file.

        Raises:
            ProfileError: it cannot be written, or there are not enough tokens yet.
        """
        profile = self.profile(name)
        if profile is None:
            raise ProfileError(
                f"{self.tokens} of {ENOUGH} tokens of {name} have been measured: use the model, and"
                " try again, or run entropix calibrate"
            )
        path = user_folder() / f"{profile.name}.toml"
        prepare(path)
        write_profile(profile, path, datetime.date.today().isoformat())
        self.file.unlink(missing_ok=True)
        self.tokens = 0
        return path

    def _cell(self, step: Step) -> Cell:
        spread = step.attention_entropy + step.attention_varentropy
        return (
            _bin(_logit(step.entropy / self._highest)),
            _bin(math.log(max(step.varentropy, SMALLEST))),
            _bin(_logit(step.margin)),
            NOT_MEASURED if math.isnan(spread) else _bin(math.log(max(spread, SMALLEST))),
        )

    def _values(self) -> dict[str, Floats]:
        """Return measurements that fall into the cells, evenly spread over each."""
        counts = self._read()
        bins = np.repeat([*counts], [*counts.values()], axis=0)
        places = (bins + np.random.default_rng(0).random(bins.shape)) / BINS
        entropy, varentropy, margin, spread = places.T
        return {
            "entropy": self._highest / (1 + np.exp(-entropy)),
            "varentropy": np.exp(varentropy),
            "margin": 1 / (1 + np.exp(-margin)),
            "attention": np.where(bins[:, 3] == NOT_MEASURED, math.nan, np.exp(spread)),
        }

    def _save(self) -> None:
        """Add what is new to the file; where it cannot be written, nothing is learned."""
        counts = self._read() + self._new
        self._new.clear()
        self.tokens = counts.total()
        rows = [[*cell, number] for cell, number in sorted(counts.items())]
        with suppress(OSError):
            self.file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self.file, json.dumps(rows, separators=(",", ":")))
        if self.ready and self._on_ready is not None:
            self._on_ready()

    def _read(self) -> Counter[Cell]:
        """Return the counts of the file; none where there is no such file, or a damaged one."""
        try:
            rows = json.loads(limits.read_text(self.file, limits.CONFIGURATION_BYTES))
            return Counter({(h, v, m, a): min(number, ENOUGH) for h, v, m, a, number in rows})
        except (OSError, ValueError, TypeError, LookupError):
            return Counter()


def learn(model: LanguageModel, on_ready: Callable[[], None] | None = None) -> TokenCounts | None:
    """Count the tokens of a model from now on, unless it has a profile; see `TokenCounts`."""
    if profile_for(model.config).calibration:
        return None
    model.counts = counts = TokenCounts(model.config, on_ready)
    return counts


def _bin(value: float) -> int:
    return math.floor(value * BINS)


def _logit(share: float) -> float:
    inside = min(max(share, SMALLEST), 1 - SMALLEST)
    return math.log(inside / (1 - inside))
