"""Finding what a reasoning model thinks before it answers, between `<think>` and `</think>`.

It is the model's own text, and not the thinking text that a sampler inserts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate
from typing import NamedTuple

OPENING, CLOSING = "<think>", "</think>"


class Reasoning(NamedTuple):
    """Neighbouring tokens that are reasoning, its tags included."""

    start: int
    """Index of the first token."""
    end: int
    """Index after the last token."""
    closed: bool
    """Whether the closing tag is there."""


def quoted(reasoning: str) -> str:
    """Return reasoning as a quotation in Markdown, without its tags, and a blank line after it."""
    lines = reasoning.replace(OPENING, "").replace(CLOSING, "").strip().splitlines()
    return "".join(f"> {line}\n" for line in lines) + "\n"


def find_reasoning(texts: Iterable[str]) -> list[Reasoning]:
    """Return the spans of reasoning in an answer.

    A tag may be spread over several tokens. Some chat templates end the prompt with the opening
    tag: a closing tag without one ends what began with the answer.

    Args:
        texts: of the answer's tokens, in order.
    """
    texts = list(texts)
    whole = "".join(texts)
    if OPENING not in whole and CLOSING not in whole:
        return []
    ends = list(accumulate(map(len, texts)))  # after each token's last character
    found: list[Reasoning] = []
    place = 0
    while place < len(whole):
        opening, closing = whole.find(OPENING, place), whole.find(CLOSING, place)
        opened_before = not found and closing >= 0 and not 0 <= opening < closing
        start = 0 if opened_before else opening
        if start < 0:
            break
        closing = whole.find(CLOSING, start)
        place = len(whole) if closing < 0 else closing + len(CLOSING)
        first, last = bisect_right(ends, start), bisect_right(ends, place - 1)
        found.append(Reasoning(first, last + 1, closing >= 0))
    return found
