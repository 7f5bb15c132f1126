"""Retrieval: where a passage of the user's notes is put into an answer, and how it is written.

The model is *lost* where its entropy is high; a passage is put at the next end of a sentence or
line, or at the end of the answer. It may have been written by anybody, so it is quoted: on one
line, without control characters and quotation marks that end it; and the markers of a chat
template's turns are broken up, so that they are read as text.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..profiles.sections import RetrievalRule
from ..samplers.row import Row
from ..step import NOT_OF_THE_MODEL, Origin, Passage, Source, Step
from .hooks import Retrieve
from .interventions import (
    Allowance,
    AnswerSoFar,
    Insertion,
    Trigger,
    may_be_interrupted,
)
from .sentences import sentence_end

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

_FIELD = re.compile(r"\{(passage|source)\}")
_MARKER = re.compile(
    r"<[|｜][^<>]{0,40}[|｜]>|<\|\w+|</?s>|\[/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_\w+)\]"
    r"|<</?SYS>>|</?(?:start_of_turn|end_of_turn|think|tool_call|tool_response)>",
    re.IGNORECASE,
)
"""What chat templates write around turns, also where it is no token of the model's own."""
_QUOTES = str.maketrans('“”„‟"', "‘’‚‛'")


class Retrieval:
    """The intervention that quotes passages."""

    def __init__(
        self, rule: RetrievalRule, tokenizer: TokenizerWrapper, retrieve: Retrieve
    ) -> None:
        self._rule = rule
        self._tokenizer = tokenizer
        self._retrieve = retrieve
        self._allowance = Allowance(rule.max_insertions, rule.min_gap)
        self._trigger = Trigger(rule.wait)
        if rule.when == "start":
            self._trigger.index = 0
        self._sentence = ""  # the last one of the answer, as far as it goes
        self._used: set[Source] = set()
        self._inside = False

    @property
    def active(self) -> bool:
        return self._allowance.left

    def __call__(self, answer: AnswerSoFar, row: Row) -> Insertion | None:
        triggered_at = self._trigger.at(answer.index)
        if triggered_at is None or not self._allowance.allows(answer.index):
            return None
        at_end = row.token in self._tokenizer.eos_token_ids
        if answer.tokens and not (at_end or may_be_interrupted(answer, row.token)):
            return None
        following = self._tokenizer.decode([row.token])
        self._trigger.index = None
        for passage in self._retrieve(self._sentence.strip()):
            if passage.score < self._rule.min_score or passage.source in self._used:
                continue
            spaced = (at_end and bool(answer.tokens)) or following[:1].isspace()
            tokens = self._written(passage, spaced)
            if len(tokens) >= answer.room or has_marker(tokens, self._tokenizer):
                return None
            about = {"triggered_at": triggered_at, "source": passage.source}
            return Insertion(tokens, Origin.RETRIEVED, about)
        return None

    def observe(self, step: Step) -> None:
        inside = step.origin is Origin.RETRIEVED
        if inside and not self._inside:
            self._allowance.begin()
            self._trigger.index = None
        self._inside = inside
        if inside:
            self._allowance.cover(step.index)
        if step.source is not None:
            self._used.add(step.source)
        if step.origin in NOT_OF_THE_MODEL:
            return
        end = sentence_end(self._sentence)
        self._sentence = (self._sentence if end is None else self._sentence[end:]) + step.text
        lost = self._rule.when == "lost" and step.entropy >= self._rule.min_entropy
        if lost and self._allowance.allows(step.index):
            self._trigger.index = step.index

    def _written(self, passage: Passage, spaced: bool) -> tuple[int, ...]:
        words = {
            "passage": self._shortened(quotable(passage.text, self._tokenizer)),
            "source": quotable(on_one_line(passage.source.label), self._tokenizer),
        }
        text = _FIELD.sub(lambda field: words[field[1]], self._rule.text)
        text = f" {text}" if spaced and not text[:1].isspace() else text
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))

    def _shortened(self, text: str) -> str:
        tokens = self._tokenizer.encode(text, add_special_tokens=False)
        if len(tokens) <= self._rule.max_tokens:
            return text
        cut = str(self._tokenizer.decode(tokens[: self._rule.max_tokens])).rstrip("\ufffd")
        return f"{cut.rpartition(' ')[0] or cut} …"


def on_one_line(text: str) -> str:
    """Return a text without control and other invisible characters, and with single spaces."""
    visible = (" " if unicodedata.category(sign)[0] == "C" else sign for sign in text)
    return " ".join("".join(visible).split())


def quotable(text: str, tokenizer: TokenizerWrapper) -> str:
    """Return a text as it may stand between quotation marks; the meaning of no marker is left."""
    text = on_one_line(text).translate(_QUOTES)
    added = map(str, getattr(tokenizer, "added_tokens_decoder", {}).values())
    for marker in sorted(added, key=len, reverse=True):
        if len(marker) > 1 and marker.strip():
            text = text.replace(marker, _broken(marker))
    return _MARKER.sub(lambda found: _broken(found[0]), text)


def has_marker(tokens: Iterable[int], tokenizer: TokenizerWrapper) -> bool:
    """Tell whether a special token is among some tokens, so that they are no plain text."""
    special = {*getattr(tokenizer, "all_special_ids", ()), *tokenizer.eos_token_ids}
    return not special.isdisjoint(tokens)


def _broken(marker: str) -> str:
    """Return a marker with a space after its first sign: ``< |im_end|>``."""
    return f"{marker[:1]} {marker[1:]}"
