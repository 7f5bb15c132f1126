"""Which thinking text a model is given, and whether it gets any: calibration by what texts do.

Every text is tried at the same few places first; those that are clearly behind the best one there
are tried no more. The best of the others go on to more places. The one that is best there becomes
the profile's, with the rule that a thought is kept only where the tokens after it gain by it. What
it does then, behind those tokens, is measured at places that had no part in the choice, with
several seeds at each: the figures that a profile records are those.
"""

from __future__ import annotations

import tomllib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from statistics import fmean, median
from typing import Any

import numpy as np
from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..ask_model import Asker
from ..evaluation.statistics import Interval, bootstrap_mean
from ..undertrained import reserved_tokens
from .insertions import Effect, Spot, Trials
from .measurements import DIGITS

FIRST_SPOTS = 8
"""Places at which every text is tried, and as many more for those that are not behind then."""
FINAL_SPOTS = 48
"""Further places for the best texts: at fewer, chance decides which of them is the best."""
FINALISTS = 3
LEAST_GAIN = 0.0
"""In nats a token: what follows a thought must gain so much, or the thought is dropped."""
LEAST_KEPT = 0.5
"""A text that is dropped more often than this is no thought of this model."""
MOST_SPOTS = 200
"""Places at which the text that was chosen is measured; as many as there are, if fewer."""
SEEDS = 2
"""How often it is measured at each of these places."""
OTHER_SEEDS = 100_000
"""What lies between the seeds of two measurements at a place: more than there are answers."""

Text = str | int


@dataclass(frozen=True)
class Measured:
    """What one text did at some spots."""

    text: Text
    spots: tuple[Spot, ...]
    effects: tuple[Effect, ...]
    """At each of them."""

    def __add__(self, other: Measured) -> Measured:
        """Return what the same text did at these spots and at others."""
        return Measured(self.text, self.spots + other.spots, self.effects + other.effects)

    @property
    def kept(self) -> list[Effect]:
        """The insertions that were kept; the others did nothing."""
        return [effect for effect in self.effects if not effect.dropped]

    @property
    def mostly_kept(self) -> bool:
        """Whether it is not dropped at half of the spots or more."""
        return len(self.kept) > LEAST_KEPT * len(self.effects)

    @property
    def rank(self) -> tuple[bool, float]:
        """Larger for the better text: one that is mostly kept, then by its mean effect."""
        return self.mostly_kept, self.mean("total")

    def mean(self, name: str) -> float:
        """Return the mean over the places of a field's mean there, in nats a token; 0 for none."""
        values = self._by_place(name)
        return fmean(values) if values else 0.0

    def interval(self, name: str = "total") -> Interval:
        """Return the 95 % bootstrap interval of that mean, over the places."""
        return bootstrap_mean(self._by_place(name))

    def behind(self, best: Measured) -> bool:
        """Tell whether this text is clearly worse than another, or dropped too often."""
        return not self.mostly_kept or self.interval().high < best.interval().low

    def to_dict(self) -> dict[str, Any]:
        """Return the figures for a profile's record."""
        kept = self.kept
        told: dict[str, Any] = {"text": self.text, "n": len(kept)}
        told["dropped"] = len(self.effects) - len(kept)
        for name in ("logprob", "entropy", "total"):
            figures = (self.mean(name), *self.interval(name)) if kept else ()
            told[name] = [round(value, DIGITS) for value in figures]
        return told

    def by_entropy(self) -> dict[str, Any]:
        """Return the figures where the entropy of the place is below its median, and the others."""
        middle = median(spot.entropy for spot in self.spots)
        sides: dict[str, list[tuple[Spot, Effect]]] = {"below": [], "above": []}
        for spot, effect in zip(self.spots, self.effects, strict=True):
            sides["below" if spot.entropy < middle else "above"].append((spot, effect))
        halves = {
            name: Measured(self.text, *(tuple(column) for column in zip(*pairs, strict=True)))
            for name, pairs in sides.items()
            if pairs
        }
        return {"bits": round(middle, DIGITS)} | {
            name: one.to_dict()["total"] for name, one in halves.items()
        }

    def _by_place(self, name: str) -> list[float]:
        found = defaultdict(list)
        for spot, effect in zip(self.spots, self.effects, strict=True):
            if not effect.dropped:
                found[spot.where].append(getattr(effect, name))
        return [fmean(values) for values in found.values()]


@dataclass(frozen=True)
class Choice:
    """The text that was chosen, and the figures behind it."""

    kept: Measured
    tried: tuple[Measured, ...]
    """All texts, those that were tried at most places first."""

    @property
    def harms(self) -> bool:
        """Whether even this text does harm: its whole interval says so."""
        return bool(self.kept.kept) and self.kept.interval().high < 0

    def changes(self) -> dict[str, Any]:
        """Return the fields of `[think]` that follow."""
        fields: dict[str, Any] = {"text": self.kept.text, "least_gain": LEAST_GAIN}
        return fields | ({"max_insertions": 0} if self.harms else {})

    def record(self) -> dict[str, Any]:
        """Return what a profile tells of it."""
        places = len({spot.where for spot in self.kept.spots})
        return {
            "kept": self.kept.to_dict() | {"places": places, "by_entropy": self.kept.by_entropy()},
            "tried": [one.to_dict() for one in self.tried],
        }


def candidates(tokenizer: TokenizerWrapper, vocab_size: int) -> list[Text]:
    """Return the texts of the package that the tokenizer can write, and a reserved token."""
    file = resources.files(__package__) / "thinking_texts.toml"
    texts: list[Text] = tomllib.loads(file.read_text(encoding="utf-8"))["texts"]
    unknown = tokenizer.unk_token_id
    known = [
        text
        for text in texts
        if (tokens := tokenizer.encode(str(text), add_special_tokens=False))
        and unknown not in tokens
    ]
    return known + list(reserved_tokens(tokenizer, vocab_size)[:1])


def choose(asker: Asker, trials: Trials, strict: Trials, found: Sequence[Spot]) -> Choice | None:
    """Return the text whose measured effect is best; None where there are too few places.

    Args:
        asker: the model, its seed, and who is told of the progress.
        trials: tries a text at a place, whether it gains there or not.
        strict: keeps it only where it gains `LEAST_GAIN`.
        found: the places.
    """
    order = np.random.default_rng(abs(asker.seed)).permutation(len(found))
    shuffled = [found[number] for number in order]
    parts = np.cumsum([FIRST_SPOTS, FIRST_SPOTS, FINAL_SPOTS, MOST_SPOTS])
    first, more, final, fresh = (
        shuffled[begin:end] for begin, end in zip([0, *parts[:-1]], parts, strict=True)
    )
    if not fresh:
        return None
    run = _Run(trials, asker)
    texts = candidates(asker.tokenizer, asker.model.config.vocab_size)
    tried = run.measure("first", first, texts)
    best = max(tried, key=lambda one: one.rank)
    racing = [one for one in tried if one is best or not one.behind(best)]
    others = [one for one in tried if one not in racing]
    racing = run.measure_on("more", more, racing)
    racing.sort(key=lambda one: one.rank, reverse=True)
    others.sort(key=lambda one: one.rank, reverse=True)
    finalists = run.measure_on("final", final, racing[:FINALISTS])
    winner = max(finalists, key=lambda one: one.rank)
    strictly = _Run(strict, asker)
    measured = []
    for number in range(1, SEEDS + 1):
        asker.progress.expect(len(fresh))
        again = strict.again(f"again {number}", fresh, asker.seed + number * OTHER_SEEDS)
        measured += strictly.measure(f"fresh {number}", again, [winner.text])
    kept = sum(measured[1:], measured[0])
    if not kept.spots:
        return None
    return Choice(kept, (*finalists, *racing[FINALISTS:], *others))


@dataclass
class _Run:
    """Tries texts at the same spots."""

    trials: Trials
    asker: Asker

    def measure(self, stage: str, where: Sequence[Spot], texts: Sequence[Text]) -> list[Measured]:
        """Return what each text does at some places, in the order of the texts."""
        count = len(where)
        asked = [(spot, text) for text in texts for spot in where]
        self.asker.progress.expect(len(asked))
        effects = self.trials.effects(stage, asked)
        return [
            Measured(text, tuple(where), tuple(effects[place * count : (place + 1) * count]))
            for place, text in enumerate(texts)
        ]

    def measure_on(
        self, stage: str, where: Sequence[Spot], found: Sequence[Measured]
    ) -> list[Measured]:
        """Return the same with what is known already."""
        more = self.measure(stage, where, [one.text for one in found])
        return [one + other for one, other in zip(found, more, strict=True)]
