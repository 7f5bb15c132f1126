"""From JSON to dataclasses: every field is checked against its type hint.

Files may be written by another version, cut off, or edited by hand; readers can rely on a record.
"""

from __future__ import annotations

import dataclasses
import json
import tomllib
import types
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from .errors import EntropixError, brief, first_line

T = TypeVar("T")


def parse_json(text: str, what: str, error: type[EntropixError]) -> Any:
    """Return what JSON says; halves of surrogate pairs, which no tokenizer can encode, become "?".

    Raises:
        error: `what` is no JSON, is nested too deeply, or states a number of thousands of digits.
    """
    try:
        value = json.loads(text)
        if "\\ud" in text.lower():
            value = json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
        return value
    except (ValueError, RecursionError) as cause:
        raise error(f"{what} is not JSON: {first_line(cause)}") from cause


def parse_toml(text: str) -> dict[str, Any]:
    """Return what TOML says.

    Raises:
        ValueError: it is no TOML, or is nested too deeply.
    """
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def from_record(kind: type[T], record: Any, where: str = "") -> T:
    """Return a dataclass from a JSON object, which `json.loads` returned.

    Fields that it does not have are ignored: a newer program may write more.

    Raises:
        ValueError: a field is missing, or has another type; the message names it, within `where`.
            Numbers must be finite.
    """
    if not isinstance(record, dict):
        raise ValueError(f"{where or 'the record'} must be an object, not {_shown(record)}")
    hints = _hints(kind)  # type: ignore[arg-type]
    values = {}
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        name = f"{where}.{field.name}" if where else field.name
        if field.name in record:
            values[field.name] = _value(hints[field.name], record[field.name], name)
        elif _is_required(field):
            raise ValueError(f"{name} is missing")
    return kind(**values)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _value(hint: Any, value: Any, where: str) -> Any:
    if hint is Any:
        return value
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):  # of one type and None
        return None if value is None else _value(get_args(hint)[0], value, where)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping(get_args(hint)[1], value, where)
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return _sequence(origin, get_args(hint)[0], value, where)
    if dataclasses.is_dataclass(hint):
        own = getattr(hint, "from_dict", None) if isinstance(value, dict) else None
        return own(value) if own else from_record(hint, value, where)  # type: ignore[arg-type]
    return _scalar(hint, value, where)


def _mapping(hint: Any, value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{where} must be an object, not {_shown(value)}")
    return {_text(key): _value(hint, item, f"{where}.{key}") for key, item in value.items()}


def _sequence(origin: type, hint: Any, value: Any, where: str) -> Sequence[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{where} must be a list, not {_shown(value)}")
    items = [_value(hint, item, f"{where}[{place}]") for place, item in enumerate(value)]
    return tuple(items) if origin is tuple else items


def _scalar(hint: Any, value: Any, where: str) -> Any:
    if hint is str and isinstance(value, str):
        return _text(value)
    if hint is int and type(value) is int:  # a bool is an int, but not a number here
        return value
    if hint is bool and type(value) is bool:
        return value
    if hint is float and type(value) in (int, float) and abs(value) <= _LARGEST:
        return float(value)
    if isinstance(hint, type) and issubclass(hint, Enum):
        try:
            return hint(value)
        except ValueError:
            known = ", ".join(str(member.value) for member in hint)
            raise ValueError(f"{where} must be one of {known}, not {_shown(value)}") from None
    raise ValueError(f"{where} must be {_WORDS[hint]}, not {_shown(value)}")


_LARGEST = 3.5e38  # a little more than the largest float32; NaN compares as false with it

_WORDS = {
    str: "a text",
    int: "a whole number",
    float: "a finite number",
    bool: "true or false",
}


def _text(value: str) -> str:
    """Return a text that UTF-8 can hold: JSON may spell half of a surrogate pair."""
    return value.encode("utf-8", "replace").decode("utf-8")


def _shown(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    return brief(value)
