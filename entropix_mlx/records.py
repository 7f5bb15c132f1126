"""JSON and TOML that others wrote, and from JSON to dataclasses by pydantic.

Files may be written by another version, cut off, or edited by hand; readers can rely on a record.
"""

from __future__ import annotations

import json
import math
import tomllib
from functools import cache
from typing import Annotated, Any, TypeVar

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


class NullIsNaN:
    """Marks a number that a record states as null where it was not measured."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        def measured(value: float | None) -> float:
            return math.nan if value is None else value

        nullable = core_schema.nullable_schema(handler(source))
        return core_schema.no_info_after_validator_function(measured, nullable)


Measured = Annotated[float, NullIsNaN()]


def from_record(kind: type[T], record: Any) -> T:
    """Return a dataclass from a JSON object, which `json.loads` returned.

    Fields that it does not have are ignored: a newer program may write more.

    Raises:
        ValueError: a field is missing, or has another type; the message names it. Numbers must be
            finite.
    """
    from pydantic import ValidationError

    text = json.dumps(record, ensure_ascii=False).encode("utf-8", "replace")
    try:
        found: list[T] = _adapter(kind).validate_json(b"[%b]" % text)  # type: ignore[arg-type]
        return found[0]
    except ValidationError as error:
        raise ValueError(explained(error, 1)) from None


def explained(error: Any, skipped: int | None = 0, whole: str = "the record") -> str:
    """Return the first mistake of a pydantic `ValidationError` as a sentence about its field.

    Args:
        error: the `ValidationError`.
        skipped: steps of the way to the field that are left out; None for all of them.
        whole: what is wrong where no field of it is named.
    """
    first = error.errors(include_url=False)[0]
    if first["type"] == "missing":
        message = "is missing"
    else:
        message = first["msg"].replace("Input should", "must").removeprefix("Value error, ")
        message += "" if first["type"] == "value_error" else f", not {brief(first['input'])}"
    path = () if skipped is None else first["loc"][skipped:]
    where = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return f"{where.removeprefix('.') or whole} {message}".lstrip()


@cache
def _adapter(kind: Any) -> Any:
    from pydantic import ConfigDict, TypeAdapter

    # In a list, since a dataclass would not take over the configuration.
    return TypeAdapter(list[kind], config=ConfigDict(strict=True, allow_inf_nan=False))
