"""The fields of a JSON body; what does not fit is refused by the field's name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from ...errors import first_line
from ...profiles.fields import LARGEST_WHOLE, Rule, hint, shown
from .errors import RequestError

LARGEST_DIGITS = 30
"""Digits of a whole number in a request: none that means something has more."""

# What is looked at more closely, which takes longer:
_LONG = re.compile(rb"[0-9]{%d}" % (LARGEST_DIGITS + 1))
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class Body:
    """The fields of a request. One that is null counts as one that is not there."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = {name: value for name, value in fields.items() if value is not None}

    @classmethod
    def parse(cls, content: bytes | bytearray) -> Body:
        try:
            whole = _whole if _LONG.search(content) else int
            value = json.loads(
                content, parse_constant=_refuse_constant, parse_int=whole, parse_float=_number
            )
            if _SURROGATE.search(content):
                json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            message = "the body holds half of a surrogate pair, which is no character"
            raise RequestError(message) from None
        except ValueError as error:  # not UTF-8, or not JSON
            raise RequestError(f"the body is not JSON: {first_line(error)}") from None
        if not isinstance(value, dict):
            raise RequestError('the body must be a JSON object, such as {"messages": […]}')
        return cls(value)

    def check_names(self, known: Iterable[str]) -> None:
        names = list(known)
        for name in self._fields:
            if name not in names:
                message = f"unknown field {shown(name)}; {hint(name, names)}"
                raise RequestError(message, name[:100], code="unknown_field")

    def __contains__(self, name: str) -> bool:
        return name in self._fields

    def get(self, name: str) -> Any:
        return self._fields.get(name)

    def without(self, names: Iterable[str]) -> dict[str, Any]:
        """Return the fields that have other names."""
        return {name: value for name, value in self._fields.items() if name not in set(names)}

    def read(self, name: str, rule: Rule, default: Any = None) -> Any:
        """Return a field's value as a rule (`profiles.fields`) returns it, or the default."""
        return self.require(name, rule) if name in self._fields else default

    def require(self, name: str, rule: Rule) -> Any:
        """Return the value of a field that must be there, as a rule returns it."""
        try:
            return rule(self._fields.get(name))
        except ValueError as error:
            raise RequestError(f"{name} {error}", name) from None


def check_object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"must be an object, not {shown(value)}")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _whole(digits: str) -> int:
    if len(digits) > LARGEST_DIGITS:
        raise ValueError(f"a number of more than {LARGEST_DIGITS} digits")
    return int(digits)


def _number(digits: str) -> int | float:
    """Return a number; one that is written 3.0 is a whole one."""
    value = float(digits)
    return int(value) if value.is_integer() and abs(value) <= LARGEST_WHOLE else value
