"""Fields of a request that say what an answer must be: OpenAI's, and vLLM's names for more."""

from __future__ import annotations

import json
from typing import Any

from ...constraints.constraint import ANY_OBJECT, CHOICE, GRAMMAR, JSON_SCHEMA, REGEX, Constraint
from ...errors import ConstraintError
from ...profiles.fields import check_flag, shown
from .body import Body, check_object
from .errors import RequestError

_KINDS = {"json": JSON_SCHEMA, "regex": REGEX, "choice": CHOICE, "grammar": GRAMMAR}
_GUIDED = {f"guided_{name}": kind for name, kind in _KINDS.items()}

FIELDS = ("response_format", "structured_outputs", *_GUIDED)


def read_constraint(body: Body) -> tuple[Constraint | None, str | None]:
    """Return the constraint of a request and the field that states it.

    Raises:
        RequestError: it is wrong, not supported, or not the only one.
    """
    found: tuple[Constraint | None, str | None] = None, None
    for name in FIELDS:
        if name not in body:
            continue
        try:
            constraint = _read(name, body)
        except ConstraintError as error:
            raise RequestError(f"{name}: {error}", name, code="bad_constraint") from None
        except RequestError as error:
            raise RequestError(f"{name}: {error}", name, code=error.code) from None
        if constraint is not None and found[0] is not None:
            raise RequestError(f"{name} and {found[1]} cannot be combined: choose one", name)
        found = (constraint, name) if constraint is not None else found
    return found


def _read(name: str, body: Body) -> Constraint | None:
    if name in _GUIDED:
        return _made(_GUIDED[name], body.get(name))
    stated = Body(body.read(name, check_object))
    return _read_format(stated) if name == "response_format" else _read_outputs(stated)


def _read_format(stated: Body) -> Constraint | None:
    kind = stated.get("type")
    if kind == "text":
        stated.check_names(("type",))
        return None
    if kind == "json_object":
        stated.check_names(("type", "schema"))
        return _made(JSON_SCHEMA, stated.get("schema")) if "schema" in stated else ANY_OBJECT
    if kind == "json_schema":
        stated.check_names(("type", "json_schema"))
        named = Body(stated.require("json_schema", check_object))
        named.check_names(("name", "description", "schema", "strict"))
        named.read("strict", check_flag)
        return _made(JSON_SCHEMA, named.require("schema", check_object))
    known = "text, json_object and json_schema"
    raise RequestError(f"type {shown(kind)} is not supported, only {known}", code="unsupported")


def _read_outputs(stated: Body) -> Constraint | None:
    stated.check_names((*_KINDS, "json_object"))
    given = [name for name in (*_KINDS, "json_object") if stated.get(name) not in (None, False)]
    if len(given) != 1:
        raise RequestError(f"must have one of {', '.join(_KINDS)}, json_object")
    [name] = given
    return ANY_OBJECT if name == "json_object" else _made(_KINDS[name], stated.get(name))


def _made(kind: str, value: Any) -> Constraint:
    if kind == JSON_SCHEMA and isinstance(value, str):  # as vLLM takes it, too
        try:
            value = json.loads(value)
        except ValueError:
            raise RequestError("the schema is not JSON") from None
    return Constraint(kind, value)
