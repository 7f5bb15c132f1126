"""Places in a JSON schema, by JSON pointer: where something stands that cannot be followed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from time import monotonic
from typing import Any, NamedTuple

from .. import limits

DEFINITIONS = "$defs", "definitions"
_NAMED = *DEFINITIONS, "properties", "patternProperties", "dependentSchemas"
_LISTED = "allOf", "anyOf", "oneOf", "prefixItems", "items"
_SINGLE = "items", "additionalProperties", "additionalItems"


class Subschema(NamedTuple):
    """A schema inside a schema."""

    pointer: str
    schema: Mapping[str, Any]


def places(schema: Mapping[str, Any]) -> Iterator[Subschema]:
    """Yield a schema and all schemas inside it."""
    waiting = [Subschema("", schema)]
    while waiting:
        place = waiting.pop()
        yield place
        waiting.extend(_inside(place))


def failing(schema: Mapping[str, Any], fails: Callable[[Any], bool]) -> str:
    """Return the pointer of the innermost schema that fails, of one that does; that of an outer one
    where the search takes too long.

    Args:
        fails: tells whether a schema cannot be compiled; definitions of the whole one are added.
    """
    shared = {name: schema[name] for name in DEFINITIONS if name in schema}
    by_pointer = {place.pointer: place for place in places(schema)}
    end = monotonic() + limits.CONSTRAINT_PLACE_SECONDS
    found, seen = by_pointer[""], {""}
    while True:
        fail = (
            place
            for place in _inside(found)
            if monotonic() < end and fails({**shared, **place.schema})
        )
        referred = str(found.schema.get("$ref")).removeprefix("#")
        inner = next(fail, None) or by_pointer.get(referred)
        if inner is None or inner.pointer in seen:
            return found.pointer
        found = inner
        seen.add(found.pointer)


def escaped(key: str) -> str:
    """Return a key as it stands in a JSON pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")


def _inside(place: Subschema) -> Iterator[Subschema]:
    """Yield the schemas that are directly inside another."""
    for key, value in place.schema.items():
        inner: Mapping[Any, Any] = {}
        if key in _NAMED and isinstance(value, Mapping):
            inner = value
        elif key in _LISTED and isinstance(value, list):
            inner = dict(enumerate(value))
        for name, each in inner.items():
            if isinstance(each, Mapping):
                yield Subschema(f"{place.pointer}/{key}/{escaped(str(name))}", each)
        if key in _SINGLE and isinstance(value, Mapping):
            yield Subschema(f"{place.pointer}/{key}", value)
