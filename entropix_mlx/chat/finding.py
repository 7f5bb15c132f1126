"""Finding texts in answers: a search in a conversation, and the spans of `<think>` blocks."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate
from typing import NamedTuple

from .conversation import Conversation

OPENING, CLOSING = "<think>", "</think>"


class Match(NamedTuple):
    """Where a text was found."""

    turn: int
    step: int | None  # the token of the selected answer in which it begins; None for the question


def search(conversation: Conversation, text: str) -> list[Match]:
    """Return the places of a text, from the beginning on; capitals do not matter."""
    text = text.lower()
    if not text:
        return []
    found = []
    for number, turn in enumerate(conversation.turns):
        if text in turn.question.lower():
            found.append(Match(number, None))
        if turn.answers:
            texts = [step.text.lower() for step in turn.answer.steps]
            ends = list(accumulate(map(len, texts)))
            answer = "".join(texts)
            at = answer.find(text)
            while at >= 0:
                found.append(Match(number, bisect_right(ends, at)))
                at = answer.find(text, at + len(text))
    return found


class Reasoning(NamedTuple):
    """Neighbouring tokens of a `<think>` block, its tags included."""

    start: int  # index of the first token
    end: int  # index after the last token
    closed: bool  # whether the closing tag is there


def quoted(reasoning: str) -> str:
    """Return reasoning as a quotation in Markdown, without its tags, and a blank line after it."""
    lines = reasoning.replace(OPENING, "").replace(CLOSING, "").strip().splitlines()
    return "".join(f"> {line}\n" for line in lines) + "\n"


def find_reasoning(texts: Iterable[str]) -> list[Reasoning]:
    """Return the spans of reasoning in an answer.

    A tag may be spread over several of the tokens' texts. Some chat templates end the prompt with
    the opening tag: a closing tag without one ends a block that began with the answer.
    """
    texts = list(texts)
    whole = "".join(texts)
    if OPENING not in whole and CLOSING not in whole:
        return []
    ends = list(accumulate(map(len, texts)))
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
