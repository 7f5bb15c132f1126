"""Retrieval: where a passage of the user's notes is put into an answer, and how it is written.

The model is *lost* where its entropy is high. A passage helps most before the sentence in which
that happens. So a sentence is followed on trial: where the model is lost in it and a passage is
found, the sentence is dropped and the passage takes its place; otherwise it becomes the text. Where
no sentence was followed (after a fork, say), the trigger is remembered until one starts.

A passage may have been written by anybody, so it is quoted: put on one line, without control
characters and without the quotation marks that end it; and the markers with which a chat template
writes a turn's begin or end are broken up, so that they are read as text.

Nothing here knows MLX, or where passages come from.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ...profiles.sections import RetrievalRule
from ...step import NOT_OF_THE_MODEL, Dropped, DropReason, Origin, Passage, Source, Step
from ..hooks import Retrieve
from ..position import Position
from ..requests import Advance
from ..writer import Record
from .base import Allowance, AnswerText, Outcome, Trial, Trigger, text_of
from .prose import Place, sentence_end

if TYPE_CHECKING:  # an answer is run without MLX, too
    from mlx_lm.tokenizer_utils import TokenizerWrapper

_FIELD = re.compile(r"\{(passage|source)\}")
_MARKER = re.compile(
    r"<[|｜][^<>]{0,40}[|｜]>|<\|\w+|</?s>|\[/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_\w+)\]"
    r"|<</?SYS>>|</?(?:start_of_turn|end_of_turn|think|tool_call|tool_response)>",
    re.IGNORECASE,
)
"""What chat templates write around turns, also where it is no token of the model's own."""
_QUOTES = str.maketrans('“”„‟"', "‘’‚‛'")


class Found(NamedTuple):
    """A passage that was found for a place, as it is written there."""

    tokens: tuple[int, ...]
    source: Source
    triggered_at: int


class Retrieval:
    """The passages of one answer."""

    def __init__(
        self,
        rule: RetrievalRule,
        tokenizer: TokenizerWrapper,
        retrieve: Retrieve,
        interrupts: Callable[[int, Position, int], bool],
    ) -> None:
        """Prepare the retrieval for an answer.

        Args:
            interrupts: `Intervention.due` of others, where a sentence on trial ends.
        """
        self.rule = rule
        self.tokenizer = tokenizer
        self.interrupts = interrupts
        self._retrieve = retrieve
        self._allowance = Allowance(rule.max_insertions, rule.min_gap)
        self._answer = AnswerText(tokenizer)
        self._trigger = Trigger(rule.wait)
        self._sentence = ""
        """The last sentence of the answer, as far as it goes."""
        self._used: set[Source] = set()
        self._inside = False

    def due(self, index: int, here: Position, room: int) -> bool:
        """As in `Intervention`: always, since looking for a passage would use up the trigger."""
        return True

    def propose(self, index: int, here: Position, room: int) -> Trial | None:
        """As in `Intervention`: a passage that was waited for, or the sentence that starts here."""
        if not self._allowance.allows(index):
            return None
        starts = index == 0 and self.rule.when == "start"
        triggered_at = 0 if starts else self._trigger.at(index)
        if triggered_at is not None and self._may_stand(here):
            self._trigger.reset()
            if found := self.find(self._sentence, triggered_at, here, room):
                return RetrievalTrial(self, index, here, room, found)
        if self.rule.when == "lost" and self.rule.draft > 0 and self._starts(here):
            return RetrievalTrial(self, index, here, room)
        return None

    def observe(self, step: Step) -> None:
        self._answer.observe(step)
        inside = step.origin is Origin.RETRIEVED
        if inside and not self._inside:
            self._allowance.begin()
            self._trigger.reset()
        self._inside = inside
        if inside:
            self._allowance.cover(step.index)
        if step.source is not None:
            self._used.add(step.source)
        if step.origin in NOT_OF_THE_MODEL:
            return
        end = sentence_end(self._sentence)
        self._sentence = (self._sentence if end is None else self._sentence[end:]) + step.text
        if step.entropy >= self.rule.min_entropy and self._allowance.allows(step.index):
            self._trigger.fire(step.index)

    def lost(self, position: Position) -> bool:
        return position.entropy >= self.rule.min_entropy

    def find(self, sentence: str, triggered_at: int, before: Position, room: int) -> Found | None:
        """Return the best passage that was not used yet, written as it stands before a token.

        Args:
            sentence: in which the model is lost; it may be empty.
            triggered_at: index of the step at which it is.
            before: the position where the passage is to stand.
            room: tokens that the model's context still holds.
        """
        for passage in self._retrieve(sentence.strip()):
            if passage.score >= self.rule.min_score and passage.source not in self._used:
                tokens = self._written(passage, before)
                fits = len(tokens) < room and not has_marker(tokens, self.tokenizer)
                return Found(tokens, passage.source, triggered_at) if fits else None
        return None

    def _starts(self, here: Position) -> bool:
        if not self._answer.tokens:
            return here.token not in self.tokenizer.eos_token_ids
        return self._answer.place(here.token) in (Place.SENTENCE, Place.LINE)

    def _may_stand(self, here: Position) -> bool:
        """Tell whether a passage may stand at the end of the answer: also where that would end."""
        return here.token in self.tokenizer.eos_token_ids or self._starts(here)

    def _written(self, passage: Passage, before: Position) -> tuple[int, ...]:
        words = {
            "passage": self._shortened(quotable(passage.text, self.tokenizer)),
            "source": quotable(on_one_line(passage.source.label), self.tokenizer),
        }
        text = _FIELD.sub(lambda field: words[field[1]], self.rule.text)
        drawn = self.tokenizer.decode([before.token])
        at_end = before.token in self.tokenizer.eos_token_ids
        spaced = (at_end and self._answer.tokens) or drawn[:1].isspace()
        text = f" {text}" if spaced and not text[:1].isspace() else text
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))

    def _shortened(self, text: str) -> str:
        tokens = self.tokenizer.encode(text, add_special_tokens=False)
        if len(tokens) <= self.rule.max_tokens:
            return text
        cut = str(self.tokenizer.decode(tokens[: self.rule.max_tokens])).rstrip("\ufffd")
        return f"{cut.rpartition(' ')[0] or cut} …"


class RetrievalTrial(Trial):
    """A sentence that becomes the text unless the model is lost in it and a passage is found."""

    branches = 1

    def __init__(
        self,
        retrieval: Retrieval,
        index: int,
        here: Position,
        room: int,
        found: Found | None = None,
    ) -> None:
        self._retrieval = retrieval
        self._index = index
        self._here = here
        self._room = room
        self._found = found
        self._sentence: list[Position] = []
        self._after = here

    def advance(self) -> Advance | None:
        if self._found is not None or not self._goes_on():
            return None
        self._sentence.append(self._after.sampled())
        return Advance.after({0: self._sentence[-1]})

    def extend(self, found: Sequence[Position]) -> None:
        (self._after,) = found

    def outcome(self, cancelled: bool) -> Outcome:
        if cancelled:
            return Outcome()
        found, dropped = self._found or self._instead(), None
        if found is None:
            origins = [Origin.SAMPLED] * len(self._sentence)
            return Outcome(positions=self._sentence, origins=origins, after=self._after)
        if self._sentence:
            tokens = tuple(position.token for position in self._sentence)
            dropped = Dropped(Origin.SAMPLED, tokens, self._text, DropReason.LOST)
        return Outcome(
            insertion=found.tokens,
            insertion_origin=Origin.RETRIEVED,
            record=Record(triggered_at=found.triggered_at, dropped=dropped, source=found.source),
        )

    def _goes_on(self) -> bool:
        retrieval, length = self._retrieval, len(self._sentence)
        ends = self._after.token in retrieval.tokenizer.eos_token_ids
        if ends or length >= min(retrieval.rule.draft, self._room) or retrieval.lost(self._after):
            return False
        if retrieval.interrupts(self._index + length, self._after, self._room - length):
            return False
        return not length or sentence_end(self._text) is None

    def _instead(self) -> Found | None:
        retrieval = self._retrieval
        if not retrieval.lost(self._after):
            return None
        triggered_at = self._index + len(self._sentence)
        return retrieval.find(self._text, triggered_at, self._here, self._room)

    @property
    def _text(self) -> str:
        tokens = [position.token for position in self._sentence]
        return text_of(self._retrieval.tokenizer, tokens)


def on_one_line(text: str) -> str:
    """Return a text without control and other invisible characters, and with single spaces."""
    visible = (" " if unicodedata.category(sign)[0] == "C" else sign for sign in text)
    return " ".join("".join(visible).split())


def quotable(text: str, tokenizer: TokenizerWrapper) -> str:
    """Return a text as it may stand between quotation marks; the meaning of no marker is left."""
    text = on_one_line(text).translate(_QUOTES)
    for marker in sorted(_added(tokenizer), key=len, reverse=True):
        text = text.replace(marker, _broken(marker))
    return _MARKER.sub(lambda found: _broken(found[0]), text)


def has_marker(tokens: Iterable[int], tokenizer: TokenizerWrapper) -> bool:
    """Tell whether a special token is among some tokens, so that they are no plain text."""
    return not _special(tokenizer).isdisjoint(tokens)


def _broken(marker: str) -> str:
    """Return a marker with a space after its first sign: ``< |im_end|>``."""
    return f"{marker[:1]} {marker[1:]}"


def _added(tokenizer: TokenizerWrapper) -> list[str]:
    added = getattr(tokenizer, "added_tokens_decoder", {})
    texts = [str(token) for token in added.values()]
    return [text for text in texts if len(text) > 1 and text.strip()]


def _special(tokenizer: TokenizerWrapper) -> set[int]:
    return {*getattr(tokenizer, "all_special_ids", ()), *tokenizer.eos_token_ids}
