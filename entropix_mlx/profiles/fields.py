"""Types of numbers for options and profiles, and messages about unknown names.

A *rule* is a function that takes a value and returns it as it is stored. For a value that does not
fit, it raises a `ValueError` such as "must be a valid number, not 'x'"; the caller adds the field's
name.
"""

from __future__ import annotations

import difflib
import functools
import math
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError

from ..errors import brief
from ..records import explained

LARGEST = 1e15
"""The largest finite number: a product of two of them and a measurement is still a float32."""
LARGEST_WHOLE = 2**53  # the largest whole number that stays on the host
LARGEST_TOP_K = 2**24  # above any vocabulary; a float32 holds every whole number up to it exactly

Rule = Callable[[Any], Any]
shown = brief


def _of_python(value: Any) -> Any:
    """Return a number of NumPy as one of Python."""
    if isinstance(value, Integral) and not isinstance(value, bool):
        return int(value)
    return float(value) if isinstance(value, Real) and not isinstance(value, Integral) else value


def _limited(value: Any) -> Any:
    """Return a number that is infinite or not too large; JSON spells infinities as texts."""
    number = float(value) if value in ("inf", "-inf") else _of_python(value)
    if isinstance(number, float) and not (abs(number) <= LARGEST or math.isinf(number)):
        raise ValueError(f"must be infinite or up to {LARGEST:g}, not {brief(value)}")
    return number


Whole = Annotated[int, Field(strict=True), BeforeValidator(_of_python)]
Finite = Annotated[float, Field(strict=True, ge=-LARGEST, le=LARGEST), BeforeValidator(_of_python)]
Positive = Annotated[Finite, Field(ge=0)]
Share = Annotated[Finite, Field(ge=0, le=1)]
Threshold = Annotated[float, Field(strict=True), BeforeValidator(_limited)]
"""A condition that always holds, or never, has an infinite one."""
Count = Annotated[Whole, Field(ge=0, le=LARGEST_WHOLE)]
TopK = Annotated[Whole, Field(ge=1, le=LARGEST_TOP_K)]


def rule_of(kind: Any) -> Rule:
    """Return the rule of a type that pydantic knows."""

    @functools.cache
    def adapter() -> TypeAdapter[Any]:  # slow to make, and not needed for --help
        return TypeAdapter(kind)

    def check(value: Any) -> Any:
        try:
            return adapter().validate_python(value)
        except ValidationError as error:
            raise ValueError(explained(error, skipped=None, whole="")) from None

    return check


def whole(low: int, high: int = LARGEST_WHOLE) -> Rule:
    return rule_of(Annotated[Whole, Field(ge=low, le=high)])


def one_of(*values: str) -> Rule:
    return rule_of(Literal.__getitem__(values))


def spell_infinities(value: Any) -> Any:
    """Return tables as JSON can hold them: it knows no infinities, so they become texts."""
    if isinstance(value, dict):
        return {name: spell_infinities(item) for name, item in value.items()}
    return str(value) if isinstance(value, float) and math.isinf(value) else value


def hint(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Return the advice after an unknown name: the one that may be meant, or all there are."""
    known = list(known)
    near = nearest(name, known)
    return f"did you mean {prefix}{near}?" if near else f"known: {', '.join(known) or 'none'}"


def nearest(name: str, known: Iterable[str]) -> str | None:
    near = difflib.get_close_matches(name[:100], list(known), n=1)
    return near[0] if near else None


def overlaid(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested tables as one, where those of `above` replace those of `below`."""
    result = {**below, **above}
    for key in below.keys() & above.keys():
        if isinstance(below[key], Mapping) and isinstance(above[key], Mapping):
            result[key] = overlaid(below[key], above[key])
    return result
