"""Reading the fields of a JSON body; what does not fit is told with the field's name."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from ...errors import first_line
from ...profiles.fields import hint, shown
from .errors import RequestError

LARGEST_DIGITS = 30
"""Digits of a whole number in a request: none that means something has more."""


class Body:
    """The fields of a request. One that is null counts as one that is not there."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = {name: value for name, value in fields.items() if value is not None}

    @classmethod
    def parse(cls, content: bytes) -> Body:
        """Return the fields of a JSON object.

        Raises:
            RequestError: it is none.
        """
        try:
            value = json.loads(content, parse_constant=_refuse_constant, parse_int=_whole)
            encodable = _encodable(value)
        except (ValueError, RecursionError) as error:  # a ValueError: not UTF-8, or not JSON
            raise RequestError(f"the body is not JSON: {first_line(error)}") from None
        if not isinstance(value, dict):
            raise RequestError('the body must be a JSON object, such as {"messages": […]}')
        if not encodable:
            raise RequestError("the body holds half of a surrogate pair, which is no character")
        return cls(value)

    def check_names(self, known: Iterable[str]) -> None:
        """Refuse fields that nothing reads."""
        names = list(known)
        for name in self._fields:
            if name not in names:
                message = f"unknown field {shown(name)}; {hint(name, names)}"
                raise RequestError(message, name[:100], code="unknown_field")

    def __contains__(self, name: str) -> bool:
        return name in self._fields

    def get(self, name: str) -> Any:
        """Return a field's value as it came, or None."""
        return self._fields.get(name)

    def flag(self, name: str, default: bool = False) -> bool:
        """Return true or false."""
        value = self._fields.get(name, default)
        return value if isinstance(value, bool) else self.refuse(name, "must be true or false")

    def whole(self, name: str, low: int, high: int, default: int | None = None) -> int | None:
        """Return a whole number; one that is written 3.0 is one, too."""
        value = self._fields.get(name, default)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            self.refuse(name, "must be a whole number")
        if not low <= value <= high:
            self.refuse(name, f"must be between {low} and {high}")
        return int(value)

    def number(self, name: str, low: float, high: float) -> float | None:
        """Return a number."""
        value = self._fields.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.refuse(name, "must be a number")
        if not (low <= value <= high and math.isfinite(value)):
            self.refuse(name, f"must be between {low:g} and {high:g}")
        return float(value)

    def text(self, name: str) -> str | None:
        """Return a text."""
        value = self._fields.get(name)
        if value is None or isinstance(value, str):
            return value
        return self.refuse(name, "must be a text")

    def table(self, name: str) -> dict[str, Any]:
        """Return an object, an empty one where there is none."""
        value = self._fields.get(name, {})
        return value if isinstance(value, dict) else self.refuse(name, "must be an object")

    def refuse(self, name: str, what: str) -> NoReturn:
        """Raise an error about a field: "temperature must be a number, not 'x'"."""
        raise RequestError(f"{name} {what}, not {shown(self._fields.get(name))}", name)


def is_token(value: Any) -> bool:
    """Tell whether a value can be the id of a token."""
    return isinstance(value, int) and not isinstance(value, bool)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _whole(digits: str) -> int:
    if len(digits) > LARGEST_DIGITS:
        raise ValueError(f"a number of more than {LARGEST_DIGITS} digits")
    return int(digits)


def _encodable(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True
