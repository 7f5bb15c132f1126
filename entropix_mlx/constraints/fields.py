"""The fields of a JSON answer: the value of each leaf, and how sure the model was of its tokens.

A token belongs to every value that it has a character of, quotes included:

    text     {  "  city  ":   "  Par  is  ",   "  big  ":   true  }
    field                     ╰── /city ──╯                 /big

1. The text is walked once to find where each leaf begins and ends.
2. Where each step's text begins follows from the lengths of those before. A step without text began
   a character of several bytes; it shares the place of the step that completes it.
3. The probability of a field is the product of its tokens' probabilities, given that each was one
   that the constraint allowed.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, count
from typing import Any, NamedTuple

from ..step import Step

LIKELY = 0.01
"""Probability among the allowed tokens from which on another one is listed as an alternative."""
_WHITE_SPACE = " \t\r\n"
_DECODER = json.JSONDecoder()


@dataclass(frozen=True)
class FieldAlternative:
    """Another way in which a value could have gone on; taking it continues from there."""

    step: int
    """Index of the step whose token is replaced."""
    token: int
    text: str
    """The value as far as that token."""
    probability: float
    """Of the token, given that it is allowed."""


@dataclass(frozen=True)
class Field:
    """A leaf of a JSON answer."""

    pointer: str
    """JSON pointer (RFC 6901); empty where the answer is one text, number or the like."""
    value: Any
    probability: float
    """That of all its tokens, given what was allowed."""
    least: float
    """The smallest probability of one of them."""
    strain: float
    """Bits; the largest of its tokens."""
    first: int
    """Index of its first step."""
    last: int
    alternatives: tuple[FieldAlternative, ...] = ()
    """The most probable ones first."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Leaf(NamedTuple):
    """A value that is neither an object nor a list with members, and its place in the text."""

    pointer: str
    value: Any
    begin: int
    end: int


def leaves(text: str) -> list[Leaf]:
    """Return the leaves of a JSON text in their order.

    Raises:
        ValueError: it is not JSON, or is nested too deeply.
    """
    walk = _Walk(text)
    try:
        walk.value("")
    except (IndexError, RecursionError) as error:
        raise ValueError("the text ends too early, or is nested too deeply") from error
    if walk.at != len(text):
        raise ValueError(f"something follows the value at character {walk.at}")
    return walk.leaves


class _Walk:
    """One way through a JSON text, from its beginning to its end; white space is skipped."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.leaves: list[Leaf] = []
        self._skip()

    def value(self, pointer: str) -> None:
        begin, opening = self.at, self.text[self.at]
        if opening not in "{[":
            self._add(pointer, self._decode(), begin)
            return
        closing = "}" if opening == "{" else "]"
        self._take(opening)
        if self.text[self.at] == closing:
            self.at += 1
            self._add(pointer, {} if closing == "}" else [], begin)
            return
        for number in count():
            self.value(f"{pointer}/{self._key() if closing == '}' else number}")
            if self.text[self.at] == closing:
                break
            self._take(",")
        self._take(closing)

    def _key(self) -> str:
        if self.text[self.at] != '"':
            raise ValueError(f"no key at character {self.at}")
        key = str(self._decode())
        self._skip()
        self._take(":")
        return key.replace("~", "~0").replace("/", "~1")

    def _decode(self) -> Any:
        found, self.at = _DECODER.raw_decode(self.text, self.at)
        return found

    def _add(self, pointer: str, value: Any, begin: int) -> None:
        self.leaves.append(Leaf(pointer, value, begin, self.at))
        self._skip()

    def _take(self, character: str) -> None:
        if self.text[self.at] != character:
            raise ValueError(f"no {character} at character {self.at}")
        self.at += 1
        self._skip()

    def _skip(self) -> None:
        while self.at < len(self.text) and self.text[self.at] in _WHITE_SPACE:
            self.at += 1


def fields_of(steps: Sequence[Step], within: str | None = None) -> list[Field]:
    """Return the fields of an answer whose text is JSON; none where it is not.

    A text that precedes the constrained part, such as reasoning, is left out.

    Args:
        within: the JSON, where the steps have more text than that.
    """
    own = [step for step in steps if step.strain is not None]
    whole = "".join(step.text for step in own)
    text = whole if within is None else within
    try:
        found = leaves(text)
    except ValueError:
        return []
    origin = whole.find(text)
    if origin < 0:  # it was written in another way than as this JSON
        return []
    places = _places(own, origin)
    return [_field(leaf, own, places, text) for leaf in found]


def _places(steps: Sequence[Step], origin: int) -> list[tuple[int, int]]:
    """Return where each step's characters begin and end, counted from an origin in their text."""
    ends = list(accumulate((len(step.text) for step in steps), initial=-origin))[1:]
    places = [(end - len(step.text), end) for step, end in zip(steps, ends, strict=True)]
    for number in reversed(range(len(places) - 1)):
        if places[number][0] == places[number][1]:
            places[number] = places[number + 1]
    return places


def _field(
    leaf: Leaf, steps: Sequence[Step], places: Sequence[tuple[int, int]], text: str
) -> Field:
    first = bisect_right(places, leaf.begin, key=lambda place: place[1])
    inside = range(first, bisect_left(places, leaf.end, key=lambda place: place[0]))
    logprobs = [min(0.0, steps[number].allowed_logprob) for number in inside]
    alternatives = [
        found
        for number in inside
        for found in _alternatives(leaf, steps[number], places[number], text)
    ]
    alternatives.sort(key=lambda one: -one.probability)
    return Field(
        pointer=leaf.pointer,
        value=leaf.value,
        probability=math.exp(math.fsum(logprobs)),
        least=math.exp(min(logprobs)),
        strain=max(steps[number].strain or 0.0 for number in inside),
        first=steps[inside[0]].index,
        last=steps[inside[-1]].index,
        alternatives=tuple(alternatives),
    )


def _alternatives(
    leaf: Leaf, step: Step, place: tuple[int, int], text: str
) -> Iterator[FieldAlternative]:
    before = text[leaf.begin : max(place[0], leaf.begin)]
    for other in step.allowed:
        tried, probability = before + other.text.lstrip(), math.exp(other.logprob)
        respelt = text.startswith(tried, leaf.begin)  # the same value in other tokens
        if probability >= LIKELY and not respelt:
            yield FieldAlternative(step.index, other.token, tried, probability)
