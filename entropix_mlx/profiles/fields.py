"""Rules for the values of fields, and messages about values that break them.

A *rule* is a function that takes a value and returns it as it is stored. For a value that does not
fit, it raises a `ValueError` such as "must be a number, not 'x'"; the caller adds the field's name.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any

from ..errors import ProfileError, brief

LARGEST = 1e15
"""The largest finite number: a product of two of them and a measurement is still a float32."""
LARGEST_WHOLE = 2**53  # the largest whole number that stays on the host
LARGEST_TOP_K = 2**24  # above any vocabulary; a float32 holds every whole number up to it exactly

Rule = Callable[[Any], Any]

INFINITIES = ("inf", "-inf")  # as JSON spells them
PASSAGE = "{passage}"  # where a passage stands in the text that introduces it

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


def check_numbers(value: Any) -> list[int | float]:
    if not isinstance(value, (list, tuple)) or not value:
        raise ValueError(f"must be a list of numbers, not {brief(value)}")
    check = Number()
    try:
        return [check(item) for item in value]
    except ValueError as error:
        raise ValueError(f"must be a list of numbers, each of which {error}") from None


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


def check_words(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(v, str) and v.strip() for v in value):
        raise ValueError(f"must be a list of words or phrases, not {brief(value)}")
    return value


def check_passage_text(value: Any) -> str:
    if not isinstance(value, str) or value.count(PASSAGE) != 1:
        raise ValueError(f"must be a text that holds {PASSAGE} once, not {brief(value)}")
    return value


def one_of(*values: str) -> Rule:

    def check(value: Any) -> str:
        if value not in values:
            raise ValueError(f"must be one of {', '.join(values)}, not {brief(value)}")
        return str(value)

    return check


def ruled(rule: Rule) -> Any:
    """Return a dataclass field whose values a rule checks, in `build_section`."""
    return field(metadata={"rule": rule})


def real(low: float = -LARGEST, high: float = LARGEST) -> Any:
    return ruled(Number(low, high))


def threshold() -> Any:
    """Return a field for a number that may be infinite: a condition that always holds, or never."""
    return ruled(Number(-math.inf, math.inf))


def whole(low: int, high: int = LARGEST_WHOLE) -> Any:
    return ruled(Number(low, high, whole=True))


def flag() -> Any:
    return ruled(check_flag)


def spell_infinities(value: Any) -> Any:
    """Return tables as JSON can hold them: it knows no infinities, so they become texts."""
    if isinstance(value, dict):
        return {name: spell_infinities(item) for name, item in value.items()}
    return str(value) if isinstance(value, float) and math.isinf(value) else value


def read_value(rule: Rule, value: Any, where: str) -> Any:
    """Return a value that a rule has checked.

    Raises:
        ProfileError: the value breaks it; the message begins with `where`, the file and the field.
    """
    try:
        return rule(value)
    except ValueError as error:
        raise ProfileError(f"{where} {error}") from None


def build_section(section: type, data: Mapping[str, Any], source: str, name: str) -> Any:
    """Return an instance of a section's dataclass, all of whose fields were made by `ruled`.

    Raises:
        ProfileError: a field is unknown, missing, or breaks its rule.
    """
    fields = dataclasses.fields(section)
    reject_unknown(data, [f.name for f in fields], source, f"{name}.")
    values = {}
    for f in fields:
        if f.name not in data:
            raise ProfileError(f"{source}: {name}.{f.name} is missing")
        values[f.name] = read_value(f.metadata["rule"], data[f.name], f"{source}: {name}.{f.name}")
    return section(**values)


def reject_unknown(data: Iterable[str], known: Iterable[str], source: str, prefix: str) -> None:
    """Raise a `ProfileError` about the first key that is not known, with what may be meant."""
    known = list(known)
    for key in data:
        if key not in known:
            raise ProfileError(
                f"{source}: unknown field {prefix}{key:.60}; {hint(key, known, prefix)}"
            )


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
