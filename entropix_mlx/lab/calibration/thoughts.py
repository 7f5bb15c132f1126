"""The choice of a model's thinking text, if any, by the measured effects of several texts.

The control of an insertion is the same answer without it, from the same place with the same seed.
The *effect* is the difference over the tokens after the place, as `Stretch` defines it. Where the
rule for thoughts compares the first of these tokens itself, the effect is measured behind them.

Every text is tried at the same few places first; those that are clearly behind the best one are
dropped, and the best of the others are tried at more places. The best one there becomes the
profile's, with the rule that a thought is accepted only where the tokens after it improve. The
figures that a profile records are then measured at fresh places, with several seeds at each.
"""

from __future__ import annotations

import math
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from itertools import cycle
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from mlx_lm.tokenizer_utils import TokenizerWrapper

from ...answer.interventions.base import AnswerText, words_of
from ...answer.interventions.prose import ALLOWED, Place, asks_for
from ...answer.interventions.thinking import flaw, to_tokens, written
from ...answer.position import Stretch, gain
from ...profiles.profile import Profile
from ...profiles.sections import Think
from ...samplers.registry import make_sampler
from ...step import Step
from ..answering import Answered, Answerer, Continuation
from ..evaluation.statistics import Interval, bootstrap_mean
from .measurements import DIGITS

FOLLOWING = 20
"""Tokens that are compared."""
LEAST_FOLLOWING = 8
"""An answer that ends sooner after a place says too little there."""
FIRST_SITES = 8
"""Places at which every text is tried, and as many more for those that are not behind then."""
FINAL_SITES = 48
"""Further places for the best texts: at fewer, chance decides which of them is the best."""
FINALISTS = 3
LEAST_GAIN = 0.0
"""In nats a token: what follows a thought must improve so much, or the thought is dropped."""
LEAST_ACCEPTED = 0.5
"""A text that is accepted less often than this is no thought of this model."""
MOST_SITES = 200
"""Places at which the text that was chosen is measured; as many as there are, if fewer."""
SEEDS = 2
"""Measurements at each of these places."""
OTHER_SEEDS = 100_000
"""What lies between the seeds of two measurements at a place: more than there are answers."""

Text = str | int


@dataclass(frozen=True)
class InsertionSite:
    """A place in an answer where a text could be inserted, and none was."""

    answer: Answered
    number: int
    """Of the step before which a text can stand."""
    place: Place
    paragraph: str

    @property
    def control(self) -> list[Step]:
        return self.answer.steps[self.number :]

    @property
    def before(self) -> tuple[int, ...]:
        """All tokens before the place: two sites with other seeds may have these in common."""
        return tuple(self.answer.tokens_before(self.number))


class InsertionEffect(NamedTuple):
    """The effect of one insertion, in nats a token; more is better, but for the entropy."""

    logprob: float
    entropy: float
    dropped: bool
    """Whether it would not have been accepted: then it did nothing."""

    @property
    def total(self) -> float:
        """The mean of the rise of log p and of the fall of entropy."""
        return (self.logprob - self.entropy) / 2


def sites(tokenizer: TokenizerWrapper, answer: Answered, rule: Think) -> Iterator[InsertionSite]:
    """Yield the places of an answer without thoughts at which the rule would allow one."""
    if asks_for(rule.not_for, tokenizer, answer.prompt):
        return
    text = AnswerText(tokenizer)
    for number, step in enumerate(answer.steps):
        place = text.place(step.token) if number else None
        enough = len(answer.steps) - number >= LEAST_FOLLOWING
        if place is not None and place in ALLOWED["sentence"] and enough:
            yield InsertionSite(answer, number, place, text.paragraph)
        text.observe(step)


class InsertionExperiment:
    """Inserts texts at sites, and compares what follows with the control."""

    def __init__(self, answerer: Answerer, profile: Profile) -> None:
        """Prepare continuations by a profile whose own interventions are off."""
        self._answerer = answerer
        self._profile = profile
        self._sampler = make_sampler("entropix", profile)
        rule = profile.think
        self._deciding = rule.watch if rule.least_gain > -math.inf else 0
        """Tokens after a text by which it is decided whether it is accepted."""
        self._length = self._deciding + FOLLOWING

    def measurable(self, site: InsertionSite) -> bool:
        return len(site.control) >= self._deciding + LEAST_FOLLOWING

    def effects(
        self, stage: str, planned: Sequence[tuple[InsertionSite, Text]]
    ) -> list[InsertionEffect]:
        inserted = [self._tokens(site, text) for site, text in planned]
        answers = self._answerer.run(
            stage,
            [
                self._continuation(site, tokens)
                for (site, _), tokens in zip(planned, inserted, strict=True)
            ],
        )
        return [
            self._effect(site, tokens, steps)
            for (site, _), tokens, steps in zip(planned, inserted, answers, strict=True)
        ]

    def reseeded(
        self, stage: str, found: Sequence[InsertionSite], seed: int
    ) -> list[InsertionSite]:
        """Return the same places in answers that continue with other seeds, counted from `seed`.

        Continuations that end too soon, or after which a text cannot stand there, have no site.
        """
        planned = [
            site.answer.continued(site.number, self._sampler, self._length, seed + number)
            for number, site in enumerate(found)
        ]
        placed = []
        answers = self._answerer.run(stage, planned)
        for site, one, steps in zip(found, planned, answers, strict=True):
            whole = [*site.answer.steps[: site.number], *steps]
            other = replace(site.answer, seed=one.settings.seed, steps=whole)
            there = sites(self._answerer.tokenizer, other, self._profile.think)
            placed += [s for s in there if s.before == site.before and self.measurable(s)]
        return placed

    def _continuation(self, site: InsertionSite, inserted: tuple[int, ...]) -> Continuation:
        tokens = len(inserted) + self._length
        return site.answer.continued(site.number, self._sampler, tokens, forced=inserted)

    def _tokens(self, site: InsertionSite, text: Text) -> tuple[int, ...]:
        form = written(text, site.place, site.paragraph) if isinstance(text, str) else text
        return to_tokens(form, self._answerer.tokenizer, self._answerer.model.config.vocab_size)

    def _effect(
        self, site: InsertionSite, inserted: tuple[int, ...], steps: Sequence[Step]
    ) -> InsertionEffect:
        before = [step.token for step in site.answer.steps[: site.number]]
        after, control = steps[len(inserted) :], site.control[: self._length]
        rule, deciding = self._profile.think, self._deciding
        watched = [step.token for step in after][: rule.watch]
        found = flaw(self._answerer.tokenizer, before, inserted, watched, rule.loop_length)
        worse = deciding > 0 and gain(after[:deciding], control[:deciding]) < rule.least_gain
        treated, usual = after[deciding:], control[deciding:]
        if found is not None or worse or not treated or not usual:
            return InsertionEffect(0.0, 0.0, dropped=True)
        one, other = Stretch.of(treated), Stretch.of(usual)
        return InsertionEffect(
            one.logprob - other.logprob, one.entropy - other.entropy, dropped=False
        )


@dataclass(frozen=True)
class TextEffects:
    """The effects of one text at some sites."""

    text: Text
    sites: tuple[InsertionSite, ...]
    effects: tuple[InsertionEffect, ...]
    """At each of them."""

    def __add__(self, other: TextEffects) -> TextEffects:
        return TextEffects(self.text, self.sites + other.sites, self.effects + other.effects)

    @property
    def accepted(self) -> int:
        return sum(not effect.dropped for effect in self.effects)

    @property
    def mostly_accepted(self) -> bool:
        return self.accepted > LEAST_ACCEPTED * len(self.effects)

    @property
    def rank(self) -> tuple[bool, float]:
        return self.mostly_accepted, self.mean("total")

    def mean(self, name: str) -> float:
        """Return the mean of a field over the places, in nats a token; 0 for none."""
        values = self._by_place(name)
        return fmean(values) if values else 0.0

    def interval(self, name: str = "total") -> Interval:
        return bootstrap_mean(self._by_place(name))

    def behind(self, best: TextEffects) -> bool:
        return not self.mostly_accepted or self.interval().high < best.interval().low

    def to_dict(self) -> dict[str, Any]:
        n = self.accepted
        record: dict[str, Any] = {"text": self.text, "n": n, "dropped": len(self.effects) - n}
        for name in ("logprob", "entropy", "total"):
            figures = (self.mean(name), *self.interval(name)) if n else ()
            record[name] = [round(value, DIGITS) for value in figures]
        return record

    def _by_place(self, name: str) -> list[float]:
        found = defaultdict(list)
        for site, effect in zip(self.sites, self.effects, strict=True):
            if not effect.dropped:
                found[site.before].append(getattr(effect, name))
        return [fmean(values) for values in found.values()]


@dataclass(frozen=True)
class ThoughtChoice:
    """The text that was chosen, perhaps in turn with others, and the figures behind it."""

    chosen: TextEffects
    """The figures are those of all texts in turn."""
    candidates: tuple[TextEffects, ...]
    """All texts, those that were tried at most places first."""
    others: tuple[Text, ...] = ()

    @property
    def text(self) -> Text | list[Text]:
        return [self.chosen.text, *self.others] if self.others else self.chosen.text

    @property
    def harms(self) -> bool:
        """Whether the whole interval of even this text lies below 0."""
        return self.chosen.accepted > 0 and self.chosen.interval().high < 0

    def changes(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"text": self.text, "least_gain": LEAST_GAIN}
        return fields | ({"max_insertions": 0} if self.harms else {})

    def record(self) -> dict[str, Any]:
        places = len({site.before for site in self.chosen.sites})
        return {
            "chosen": self.chosen.to_dict() | {"text": self.text, "places": places},
            "candidates": [one.to_dict() for one in self.candidates],
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


def reserved_tokens(tokenizer: TokenizerWrapper, vocab_size: int) -> list[int]:
    """Return the ids of tokens that no text has, in ascending order.

    They are those added to the vocabulary that neither end a text nor stand in the chat template,
    and the rows of the embedding beyond the vocabulary.
    """
    template = tokenizer.chat_template or ""
    used = {*tokenizer.eos_token_ids, tokenizer.bos_token_id, tokenizer.pad_token_id}
    used.add(tokenizer.unk_token_id)
    added = {
        token
        for text, token in tokenizer.get_added_vocab().items()
        if token < vocab_size and token not in used and text not in template
    }
    beyond = set(range(vocab_size)) - set(tokenizer.get_vocab().values())
    return sorted(added | beyond)


def choose(
    answerer: Answerer,
    anywhere: InsertionExperiment,
    improving: InsertionExperiment,
    found: Sequence[InsertionSite],
) -> ThoughtChoice | None:
    """Return the text whose measured effect is best; None where there are too few places.

    Args:
        answerer: the model, its seed, and the journal.
        anywhere: accepts a text at every place.
        improving: accepts it only where the next tokens improve by `LEAST_GAIN`.
        found: the places.
    """
    order = np.random.default_rng(abs(answerer.seed)).permutation(len(found))
    shuffled = [found[number] for number in order]
    parts = np.cumsum([FIRST_SITES, FIRST_SITES, FINAL_SITES, MOST_SITES])
    first, more, final, fresh = (
        shuffled[begin:end] for begin, end in zip([0, *parts[:-1]], parts, strict=True)
    )
    if not fresh:
        return None

    def measured(stage: str, where: Sequence[InsertionSite], texts: Sequence[TextEffects]) -> Any:
        more = _measured(answerer, anywhere, stage, where, [one.text for one in texts])
        return [one + other for one, other in zip(texts, more, strict=True)]

    texts = candidates(answerer.tokenizer, answerer.model.config.vocab_size)
    tried = _measured(answerer, anywhere, "first", first, texts)
    best = max(tried, key=lambda one: one.rank)
    racing = [one for one in tried if one is best or not one.behind(best)]
    behind = [one for one in tried if one not in racing]
    racing = measured("more", more, racing)
    racing.sort(key=lambda one: one.rank, reverse=True)
    behind.sort(key=lambda one: one.rank, reverse=True)
    finalists = measured("final", final, racing[:FINALISTS])
    winner = max(finalists, key=lambda one: one.rank)
    equals = [one.text for one in finalists if one is not winner and not one.behind(winner)]
    others = tuple(text for text in equals if isinstance(text, str) and words_of(text))
    chosen = TextEffects(winner.text, (), ())
    for number in range(1, SEEDS + 1):
        answerer.journal.expect(len(fresh))
        seed = answerer.seed + number * OTHER_SEEDS
        where = improving.reseeded(f"again {number}", fresh, seed)
        answerer.journal.expect(len(where))
        turns = zip(where, cycle((winner.text, *others)), strict=False)
        effects = improving.effects(f"fresh {number}", list(turns))
        chosen += TextEffects(chosen.text, tuple(where), tuple(effects))
    if not chosen.sites:
        return None
    every = (*finalists, *racing[FINALISTS:], *behind)
    return ThoughtChoice(chosen, every, others)


def _measured(
    answerer: Answerer,
    experiment: InsertionExperiment,
    stage: str,
    where: Sequence[InsertionSite],
    texts: Sequence[Text],
) -> list[TextEffects]:
    count = len(where)
    planned = [(site, text) for text in texts for site in where]
    answerer.journal.expect(len(planned))
    effects = experiment.effects(stage, planned)
    return [
        TextEffects(text, tuple(where), tuple(effects[place * count : (place + 1) * count]))
        for place, text in enumerate(texts)
    ]
