"""JSON and TOML that others wrote, from JSON to dataclasses by pydantic, and text that is safe to
print.

Files may be written by another version, cut off, or edited by hand; readers can rely on a record.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from functools import cache
from typing import Annotated, Any, TypeVar

from .errors import EntropixError, brief, first_line

T = TypeVar("T")

_CONTROL = (
    {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"}
    | {0x7F: 0x2421}
    | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)  # Unicode has no symbols for these
)
_UNSAFE = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff]")


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


def to_json(value: Any, indent: int | None = None) -> str:
    """Return JSON that is safe to print: it holds no character that a terminal would obey.

    ``json.dumps`` writes DEL, the C1 control characters (155 begins an escape sequence as ESC [
    does), the line separators U+2028 and U+2029 and lone surrogates as they are. Here they are
    ``\\u`` escapes: each record stays on one line for every reader, and UTF-8 can hold it.
    """
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def printable(text: str) -> str:
    """Return a text with visible symbols in place of control characters, which a terminal obeys."""
    return text.translate(_CONTROL)
