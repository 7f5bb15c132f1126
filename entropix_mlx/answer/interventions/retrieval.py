"""When a passage of the user's notes is looked up, and how it is written into the answer.

The model is *lost* where its entropy is high. A passage helps most before the sentence in which
that happens. So a sentence is begun as a *draft* that is not committed: where the model is lost in
it and a passage is found, the draft is dropped and the passage takes its place; otherwise it
becomes the text. Where there was no draft (after a fork, say), the wish is remembered until a
sentence starts. Nothing here knows MLX, or where passages come from.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from ...profiles.sections import RetrievalRule
from ...step import (
    NOT_OF_THE_MODEL,
    Dropped,
    DropReason,
    Origin,
    Passage,
    Source,
    Step,
)
from ..hooks import Retrieve
from ..position import Reading
from .base import Allowance
from .placement import Ground, Wish, text_of
from .prose import Place
from .quoting import has_marker, on_one_line, quotable
from .sentences import sentence_end

if TYPE_CHECKING:  # an answer is run without MLX, too
    from mlx_lm.tokenizer_utils import TokenizerWrapper

_FIELD = re.compile(r"\{(passage|source)\}")


class Lookup(NamedTuple):
    """A passage that is to stand at a place."""

    tokens: tuple[int, ...]
    source: Source
    wish: int
    """Index of the step at which it was wished for."""
    dropped: Dropped | None = None
    """The draft in whose place it stands."""


class Retrieving:
    """The passages of one answer.

    All that it remembers follows from the steps that it is told of, so an answer that is taken up
    again goes on as it would have.
    """

    def __init__(
        self, rule: RetrievalRule, tokenizer: TokenizerWrapper, retrieve: Retrieve
    ) -> None:
        self._rule = rule
        self._tokenizer = tokenizer
        self._retrieve = retrieve
        self._allowance = Allowance(rule.max_insertions, rule.min_gap)
        self._ground = Ground(tokenizer)
        self._wish = Wish(rule.wait)
        self._sentence = ""
        """The last sentence of the answer, as far as it goes."""
        self._told: set[Source] = set()
        self._inside = False

    def due(self, index: int, reading: Reading, room: int) -> Lookup | None:
        """Return the passage that is to stand at a position before anything is tried there.

        Args:
            index: of the position.
            reading: what was decided and drawn there.
            room: tokens that the model's context still holds.
        """
        if not self._allowance.allows(index):
            return None
        starts = index == 0 and self._rule.when == "start"
        wish = 0 if starts else self._wish.at(index)
        if wish is None or not self._may_stand(reading):
            return None
        self._wish.end()
        return self._find(self._sentence, wish, reading, room)

    def drafts(self, index: int, reading: Reading) -> bool:
        """Tell whether the sentence that starts at a position is to be tried first."""
        looks = self._rule.when == "lost" and self._allowance.allows(index)
        return looks and self._rule.draft > 0 and self._starts(reading)

    def goes_on(self, draft: list[Reading], reading: Reading) -> bool:
        """Tell whether a draft grows by the token that was drawn at the position after it."""
        ends = reading.token in self._tokenizer.eos_token_ids
        if ends or len(draft) >= self._rule.draft or self._lost(reading):
            return False
        return not draft or sentence_end(self._text(draft)) is None

    def instead(
        self, index: int, draft: list[Reading], reading: Reading, first: Reading, room: int
    ) -> Lookup | None:
        """Return the passage that takes the place of a draft; None if the draft becomes the text.

        Args:
            index: of the position at which the draft begins.
            draft: its tokens.
            reading: the position after them.
            first: the position at which it begins.
            room: tokens that the model's context still holds.
        """
        if not self._lost(reading):
            return None
        text = self._text(draft)
        found = self._find(text, index + len(draft), first, room)
        if found is None or not draft:
            return found
        tokens = tuple(one.token for one in draft)
        return found._replace(dropped=Dropped(Origin.SAMPLED, tokens, text, DropReason.LOST))

    def observe(self, step: Step) -> None:
        """Take note of a step that was committed."""
        self._ground.observe(step)
        inside = step.origin is Origin.RETRIEVED
        if inside and not self._inside:
            self._allowance.begin()
            self._wish.end()
        self._inside = inside
        if inside:
            self._allowance.cover(step.index)
        if step.source is not None:
            self._told.add(step.source)
        if step.origin in NOT_OF_THE_MODEL:
            return
        end = sentence_end(self._sentence)
        self._sentence = (self._sentence if end is None else self._sentence[end:]) + step.text
        if step.entropy >= self._rule.min_entropy and self._allowance.allows(step.index):
            self._wish.make(step.index)

    def _lost(self, reading: Reading) -> bool:
        return reading.decision.metrics.entropy >= self._rule.min_entropy

    def _starts(self, reading: Reading) -> bool:
        """Tell whether a sentence starts at the end of the answer."""
        if not self._ground.tokens:
            return reading.token not in self._tokenizer.eos_token_ids
        return self._ground.place(reading.token) in (Place.SENTENCE, Place.LINE)

    def _may_stand(self, reading: Reading) -> bool:
        """Tell whether a passage may stand at the end of the answer: also where that would end."""
        return reading.token in self._tokenizer.eos_token_ids or self._starts(reading)

    def _find(self, sentence: str, wish: int, reading: Reading, room: int) -> Lookup | None:
        """Return the best passage that may be told, written as it stands before a token."""
        for passage in self._retrieve(sentence.strip()):
            if passage.score >= self._rule.min_score and passage.source not in self._told:
                tokens = self._written(passage, reading)
                fits = len(tokens) < room and not has_marker(tokens, self._tokenizer)
                return Lookup(tokens, passage.source, wish) if fits else None
        return None

    def _written(self, passage: Passage, before: Reading) -> tuple[int, ...]:
        """Return the tokens of a passage and of what introduces it."""
        words = {
            "passage": self._shortened(quotable(passage.text, self._tokenizer)),
            "source": quotable(on_one_line(passage.source.label), self._tokenizer),
        }
        text = _FIELD.sub(lambda field: words[field[1]], self._rule.text)
        drawn = self._tokenizer.decode([before.token])
        at_end = before.token in self._tokenizer.eos_token_ids
        spaced = (at_end and self._ground.tokens) or drawn[:1].isspace()
        text = f" {text}" if spaced and not text[:1].isspace() else text
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))

    def _shortened(self, text: str) -> str:
        """Return a passage of at most the profile's number of tokens, with "…" if it is cut."""
        tokens = self._tokenizer.encode(text, add_special_tokens=False)
        if len(tokens) <= self._rule.max_tokens:
            return text
        kept = str(self._tokenizer.decode(tokens[: self._rule.max_tokens])).rstrip("\ufffd")
        return f"{kept.rpartition(' ')[0] or kept} …"

    def _text(self, draft: list[Reading]) -> str:
        return text_of(self._tokenizer, [one.token for one in draft])
