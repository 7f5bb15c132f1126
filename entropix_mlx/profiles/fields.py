"""Rules for the values of options and fields, and messages about values that break them.

A *rule* is a function that takes a value and returns it as it is stored. For a value that does not
fit, it raises a `ValueError` such as "must be a number, not 'x'"; the caller adds the field's name.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from ..errors import ProfileError, brief

LARGEST = 1e15
"""The largest finite number: a product of two of them and a measurement is still a float32."""
LARGEST_WHOLE = 2**53  # the largest whole number that stays on the host
LARGEST_TOP_K = 2**24  # above any vocabulary; a float32 holds every whole number up to it exactly

Rule = Callable[[Any], Any]

INFINITIES = ("inf", "-inf")  # as JSON spells them

shown = brief


@dataclass(frozen=True)
class Number:
    """A rule for numbers, those of NumPy included. NaN is none; infinities are if a bound is, and
    so are the texts "inf" and "-inf" then; see `spell_infinities`."""

    low: float = -LARGEST
    high: float = LARGEST
    whole: bool = False
    open: bool = False  # whether `low` itself is out of the range

    def __call__(self, value: Any) -> Any:
        endless = math.inf in (self.high, -self.low)
        if endless and isinstance(value, str) and value in INFINITIES:
            value = float(value)
        word = "a whole number" if self.whole else "a number"
        kind: Any = Integral if self.whole else Real
        if isinstance(value, bool) or not isinstance(value, kind) or not abs(value) >= 0:  # NaN
            raise ValueError(f"must be {word}, not {brief(value)}")
        above = value > self.low if self.open else value >= self.low
        if not (above and value <= self.high):
            raise ValueError(f"must be {word} {self._range(value)}, not {brief(value)}")
        if not (self.whole or abs(value) <= LARGEST or abs(value) == math.inf):
            raise ValueError(f"must be infinite or up to {LARGEST:g}, not {brief(value)}")
        return int(value) if isinstance(value, Integral) else float(value)

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(self)

    def _range(self, value: Any) -> str:
        least = f"above {self.low:g}" if self.open else f"of at least {self.low:g}"
        if self.high >= LARGEST_TOP_K:  # a limit of the machine: stated where it is exceeded
            most = self.high if isinstance(self.high, int) else f"{self.high:g}"
            return f"of at most {most}" if value > self.high else least
        if self.open:
            return f"{least} and at most {self.high}"
        return f"between {self.low} and {self.high}"


def check_flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"must be true or false, not {brief(value)}")
    return value


def check_biases(value: Any) -> dict[int, float]:
    """Return biases by the ids of their tokens; JSON writes the ids as texts."""
    if not isinstance(value, Mapping):
        raise ValueError(f"must map token ids to numbers, not {brief(value)}")
    token, bias = Number(0, LARGEST_WHOLE, whole=True), Number()
    found = {}
    for key, number in value.items():
        digits = isinstance(key, str) and len(key) < 20 and key.isdecimal()
        try:
            found[token(int(key) if digits else key)] = bias(number)
        except ValueError as error:
            raise ValueError(f"must map token ids to numbers, each of which {error}") from None
    return found


def check_text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"must be a text, not {brief(value)}")
    return value


def check_thinking_text(value: Any) -> Any:
    """Return a thinking text: a text, a token id, or a list of them."""
    items = value if isinstance(value, list) else [value]
    fits = all(isinstance(v, (str, int)) and not isinstance(v, bool) and v != "" for v in items)
    if not items or not fits:
        raise ValueError(f"must be a text, a token id, or a list of them, not {brief(value)}")
    return value


def one_of(*values: str) -> Rule:

    def check(value: Any) -> str:
        if value not in values:
            raise ValueError(f"must be one of {', '.join(values)}, not {brief(value)}")
        return str(value)

    return check


def spell_infinities(value: Any) -> Any:
    """Return tables as JSON can hold them: it knows no infinities, so they become texts."""
    if isinstance(value, dict):
        return {name: spell_infinities(item) for name, item in value.items()}
    return str(value) if isinstance(value, float) and math.isinf(value) else value


def reject_unknown(data: Iterable[str], known: Iterable[str], source: str, prefix: str) -> None:
    """Raise a `ProfileError` about the first key that is not known."""
    known = list(known)
    for key in data:
        if key not in known:
            raise ProfileError(f"{source}: {unknown(key, known, prefix)}")


def unknown(key: str, known: Iterable[str], prefix: str) -> str:
    return f"unknown field {prefix}{key:.60}; {hint(key, known, prefix)}"


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
