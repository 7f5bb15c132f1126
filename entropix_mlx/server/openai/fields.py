"""What the models of requests have in common: types of fields, and errors by their place.

A field's type is a rule of `profiles.fields`, which returns the value as it is kept or says what it
must be. Pydantic names the place of what is wrong, and `refusal` makes that OpenAI's ``param``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Annotated, Any, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    StrictBool,
    StrictStr,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError, from_json

from ...constraints.constraint import JSON_SCHEMA, Constraint
from ...errors import ConstraintError, first_line
from ...profiles.fields import (
    LARGEST_WHOLE,
    Rule,
    hint,
    nearest,
    rule_of,
    shown,
)
from ...profiles.fields import whole as whole_rule
from .errors import RequestError

Json = dict[str, Any]
UNSUPPORTED, BAD_CONSTRAINT = "unsupported", "bad_constraint"
LONGEST_NAME = 100
MOST_FIELDS, LONGEST_OBJECT = 512, 2**16
"""Of an object whose fields have no names of ours, the latter as JSON."""


class Fields(BaseModel):
    """The fields of an object. One that is null counts as one that is not there."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:
        return {name: item for name, item in check_object(value).items() if item is not None}


Model = TypeVar("Model", bound=Fields)


def ruled(rule: Rule) -> BeforeValidator:
    """Return what checks a field by a rule; a number that is written 3.0 is a whole one."""

    def check(value: Any) -> Any:
        if type(value) is float and value.is_integer() and abs(value) <= LARGEST_WHOLE:
            value = int(value)
        try:
            return rule(value)
        except ConstraintError as error:
            raise PydanticCustomError(BAD_CONSTRAINT, "{why}", {"why": f": {error}"}) from None

    return BeforeValidator(check)


def whole(low: int, high: int = LARGEST_WHOLE) -> BeforeValidator:
    return ruled(whole_rule(low, high))


def check_object(value: Any) -> Json:
    if not isinstance(value, dict):
        raise ValueError(f"must be an object, not {shown(value)}")
    return value


def check_small_object(value: Any) -> Json:
    """Return an object; refuse what is larger than any profile before it is used."""
    if len(check_object(value)) > MOST_FIELDS or len(json.dumps(value)) > LONGEST_OBJECT:
        raise ValueError(f"may have {MOST_FIELDS} fields and {LONGEST_OBJECT:,} bytes at most")
    return check_object(value)


def check_list(most: int) -> BeforeValidator:
    """Return what checks the length of a list."""

    def check(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise ValueError(f"must be a list, not {shown(value)}")
        if len(value) > most:
            raise ValueError(f"may hold {most:,} at most")
        return value

    return BeforeValidator(check)


def check_names(value: Json, *known: str) -> None:
    for name in value:
        if name not in known:
            raise ValueError(f"has an unknown field {shown(name)}; {hint(name, known)}")


def schema(value: Any) -> Constraint:
    return Constraint(JSON_SCHEMA, check_object(value))


check_flag = rule_of(StrictBool)
Flag = Annotated[bool, ruled(check_flag)]
Text = Annotated[str, ruled(rule_of(StrictStr))]
Object = Annotated[Json, ruled(check_object)]


def unsupported(why: str) -> PydanticCustomError:
    return PydanticCustomError(UNSUPPORTED, "{why}", {"why": why})


def parse_body(content: bytes | bytearray) -> Json:
    """Return the fields of a body.

    Raises:
        RequestError: it is no JSON object.
    """
    try:
        value = from_json(content, allow_inf_nan=False)
    except ValueError as error:  # not UTF-8, not JSON, or nested too deeply
        raise RequestError(f"the body is not JSON: {first_line(error)}") from None
    if not isinstance(value, dict):
        raise RequestError('the body must be a JSON object, such as {"messages": […]}')
    return value


def read_fields(kind: type[Model], body: Json) -> Model:
    """Return a body as the fields of a kind of request.

    Raises:
        RequestError: one is unknown or wrong, and which.
    """
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        raise _refusal(error, kind.model_fields) from None


def _refusal(error: ValidationError, known: Iterable[str]) -> RequestError:
    """Return the response to what a model of requests refuses, given its fields."""
    fault = error.errors(include_url=False, include_input=False)[0]
    place, kind = fault["loc"], fault["type"]
    param = str(place[0])[:LONGEST_NAME] if place else None
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)[1:]
    where = where[:LONGEST_NAME] or "the body"
    if kind == "extra_forbidden":
        return unknown_field(where, str(place[-1]), known)
    if kind == "missing":
        return RequestError(f"{where} must be there", param)
    reason = fault["ctx"].get("error") or fault["ctx"].get("why") if "ctx" in fault else None
    said = f"{where}: {fault['msg']}" if reason is None else f"{where} {reason}"
    code = kind if kind in (UNSUPPORTED, BAD_CONSTRAINT) else None
    return RequestError(said.replace(" : ", ": "), param, code=code)


def unknown_field(where: str, name: str, known: Iterable[str]) -> RequestError:
    near = nearest(name, known)
    advice = f"did you mean {near}?" if near else "leave it out"
    param = where.partition(".")[0].partition("[")[0][:LONGEST_NAME]
    message = f"unknown field {where[:LONGEST_NAME]!r}; {advice}"
    return RequestError(message, param, code="unknown_field")
