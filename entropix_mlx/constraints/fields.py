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
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any, NamedTuple

from ..step import Step

LIKELY = 0.01
"""Probability among the allowed tokens from which on another one is listed as an alternative."""
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[][{},:]|[^][{},:"\s]+')
"""Of a JSON text: a string, a sign, or another word."""


def _no_json(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


def _number(text: str) -> float | str:
    """Return a number; the text of one that is beyond a float, as no JSON could be written of
    it."""
    number = float(text)
    return number if math.isfinite(number) else text


_DECODER = json.JSONDecoder(parse_float=_number, parse_constant=_no_json)


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
    try:
        _DECODER.decode(text)
    except RecursionError as error:
        raise ValueError("the text is nested too deeply") from error
    found = []
    keys: list[int | str] = []
    before, begin = "", 0
    for token in _TOKEN.finditer(text):
        word = token[0]
        if word in ("{", "["):
            keys.append("" if word == "{" else 0)
            begin = token.start()
        elif word in ("}", "]"):
            keys.pop()
            if before in ("{", "["):
                found.append(Leaf(_pointer(keys), {} if word == "}" else [], begin, token.end()))
        elif word == "," and isinstance(keys[-1], int):
            keys[-1] += 1
        elif before in ("{", ",") and isinstance(keys[-1], str):
            keys[-1] = json.loads(word)
        elif word not in (",", ":"):
            found.append(Leaf(_pointer(keys), _DECODER.decode(word), *token.span()))
        before = word
    return found


def escaped(key: str) -> str:
    """Return a key as it stands in a JSON pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")


def _pointer(keys: Sequence[int | str]) -> str:
    return "".join(f"/{escaped(str(key))}" for key in keys)


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
