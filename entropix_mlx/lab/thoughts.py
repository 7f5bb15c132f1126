"""Which thinking text a model is given, and whether it gets any: calibration by what texts do.

Every text is tried at the same few places first. The best of them go on to more places, and the
one that is best there is measured once more at places that had no part in the choice: the figures
that a profile records are those.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from statistics import fmean
from typing import Any

import numpy as np
from mlx_lm.tokenizer_utils import TokenizerWrapper

from .asking import Asker, Progress
from .evaluation.statistics import Interval, bootstrap_mean
from .insertions import Effect, Spot, Trials
from .undertrained import reserved_tokens

FIRST_SPOTS = 16
"""Places at which every text is tried."""
SECOND_SPOTS = 16
"""Further places for the best texts."""
FINALISTS = 3
LEAST_KEPT = 0.5
"""A text that is dropped more often than this is no thought of this model."""
MOST_SPOTS = 400
"""Places at which the text that was chosen is measured; as many as there are, if fewer."""
DIGITS = 4

Text = str | int


@dataclass(frozen=True)
class Measured:
    """What one text did at some places."""

    text: Text
    effects: tuple[Effect, ...]

    @property
    def kept(self) -> list[Effect]:
        """The insertions that were kept; the others did nothing."""
        return [effect for effect in self.effects if not effect.dropped]

    @property
    def rank(self) -> tuple[bool, float]:
        """Larger for the better text: one that is mostly kept, then by its mean effect."""
        mostly = len(self.kept) > LEAST_KEPT * len(self.effects)
        return mostly, self.mean("total")

    def mean(self, name: str) -> float:
        """Return the mean of a field over the insertions that were kept, in nats a token."""
        return fmean(getattr(effect, name) for effect in self.kept) if self.kept else 0.0

    def interval(self, name: str = "total") -> Interval:
        """Return the 95 % bootstrap interval of that mean, over the places."""
        return bootstrap_mean([getattr(effect, name) for effect in self.kept])

    def to_dict(self) -> dict[str, Any]:
        """Return the figures for a profile's record."""
        kept = self.kept
        told: dict[str, Any] = {"text": self.text, "n": len(kept)}
        told["dropped"] = len(self.effects) - len(kept)
        for name in ("logprob", "entropy", "total"):
            figures = (self.mean(name), *self.interval(name)) if kept else ()
            told[name] = [round(value, DIGITS) for value in figures]
        return told


@dataclass(frozen=True)
class Choice:
    """The text that was chosen, and the figures behind it."""

    kept: Measured
    tried: tuple[Measured, ...]
    """All texts at the first places, the best first."""

    @property
    def harms(self) -> bool:
        """Whether even this text does harm: its whole interval says so."""
        return bool(self.kept.kept) and self.kept.interval().high < 0

    def changes(self) -> dict[str, Any]:
        """Return the fields of `[think]` that follow."""
        fields: dict[str, Any] = {"text": self.kept.text}
        return fields | ({"max_insertions": 0} if self.harms else {})

    def record(self) -> dict[str, Any]:
        """Return what a profile tells of it."""
        return {
            "kept": self.kept.to_dict(),
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


def choose(asker: Asker, trials: Trials, found: Sequence[Spot]) -> Choice | None:
    """Return the text whose measured effect is best; None where there are too few places.

    Args:
        asker: the model, its seed, and who is told of the progress.
        trials: tries a text at a place.
        found: the places.
    """
    order = np.random.default_rng(abs(asker.seed)).permutation(len(found))
    shuffled = [found[number] for number in order]
    first = shuffled[:FIRST_SPOTS]
    second = shuffled[FIRST_SPOTS : FIRST_SPOTS + SECOND_SPOTS]
    fresh = shuffled[FIRST_SPOTS + SECOND_SPOTS :][:MOST_SPOTS]
    if not fresh:
        return None
    texts = candidates(asker.tokenizer, asker.model.config.vocab_size)
    asker.progress.expect(len(texts) * len(first) + FINALISTS * len(second) + len(fresh))
    run = _Run(trials, asker.progress)
    tried = sorted(run.measure("first", first, texts), key=lambda one: one.rank, reverse=True)
    best = tried[:FINALISTS]
    again = run.measure("second", second, [one.text for one in best])
    both = [Measured(a.text, a.effects + b.effects) for a, b in zip(best, again, strict=True)]
    winner = max(both, key=lambda one: one.rank)
    (kept,) = run.measure("fresh", fresh, [winner.text])
    return Choice(kept, tuple(tried))


@dataclass
class _Run:
    """Tries texts, and remembers in a journal what came out."""

    trials: Trials
    progress: Progress

    def measure(self, stage: str, where: Sequence[Spot], texts: Sequence[Text]) -> list[Measured]:
        """Return what each text does at some places, in the order of the texts."""
        journal = self.progress.journal
        asked = [(spot, text) for spot in where for text in texts]
        known = {n: found for n in range(len(asked)) if (found := journal.get(stage, n))}
        effects = {number: Effect(*found) for number, found in known.items()}
        missing = [number for number in range(len(asked)) if number not in effects]
        self.progress.advance(len(effects))

        def keep(place: int, effect: Effect) -> None:
            effects[missing[place]] = effect
            journal.add(stage, missing[place], list(effect))
            self.progress.advance()

        self.trials.run([asked[number] for number in missing], keep)
        return [
            Measured(text, tuple(effects[n] for n in range(place, len(asked), len(texts))))
            for place, text in enumerate(texts)
        ]
