"""A constraint as a user states it: a JSON schema, a regular expression, a choice or a grammar."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .. import limits
from ..errors import ConstraintError, brief

JSON_SCHEMA, REGEX, CHOICE, GRAMMAR = "json_schema", "regex", "choice", "grammar"


@dataclass(frozen=True)
class Constraint:
    """What an answer must match as a whole.

        Constraint("json_schema", {"type": "object", "properties": {…}})
        Constraint("regex", r"[0-9]{4}")
        Constraint("choice", ["yes", "no"])
        Constraint("grammar", 'start: "a" | "b"')        # Lark as llguidance reads it, or GBNF

    Raises:
        ConstraintError: there is no such kind, or the value is of another type or too large.
    """

    kind: str
    value: Any

    def __post_init__(self) -> None:
        if self.kind not in _CHECKS:
            kinds = ", ".join(_CHECKS)
            raise ConstraintError(f"a constraint is one of {kinds}, not {brief(self.kind)}")
        _CHECKS[self.kind](self.value)
        if len(self.text) > limits.CONSTRAINT_CHARACTERS:
            raise ConstraintError(
                f"a constraint has at most {limits.CONSTRAINT_CHARACTERS:,} characters, and this"
                f" {self.kind} has {len(self.text):,}: make it smaller"
            )

    def __hash__(self) -> int:
        return hash((self.kind, self.text))

    @classmethod
    def of(cls, value: Any) -> Constraint | None:
        """Return a constraint from an object with one key, such as ``{"regex": "[0-9]+"}``.

        Raises:
            ConstraintError: it is something else.
        """
        if value is None or isinstance(value, cls):
            return value
        if not isinstance(value, Mapping) or len(value) != 1:
            raise ConstraintError(
                f'a constraint is an object such as {{"regex": "[0-9]+"}}, not {brief(value)}'
            )
        [(kind, stated)] = value.items()
        return cls(kind, stated)

    @property
    def text(self) -> str:
        """The value as text: JSON, except for a regular expression or a grammar."""
        return self.value if isinstance(self.value, str) else json.dumps(self.value)

    @property
    def is_json(self) -> bool:
        return self.kind == JSON_SCHEMA

    def to_dict(self) -> dict[str, Any]:
        return {self.kind: self.value}


def _check_schema(value: Any) -> None:
    if not isinstance(value, Mapping):
        raise ConstraintError(f"a JSON schema is an object, not {brief(value)}")
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConstraintError(f"the schema cannot be written as JSON: {error}") from error


def _check_text(value: Any) -> None:
    if not isinstance(value, str) or not value:
        raise ConstraintError(f"a regex or a grammar is a text, not {brief(value)}")


def _check_choice(value: Any) -> None:
    texts = value if isinstance(value, (list, tuple)) else ()
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise ConstraintError(f"a choice is a list of texts, none empty, not {brief(value)}")


_CHECKS: dict[str, Callable[[Any], None]] = {
    JSON_SCHEMA: _check_schema,
    REGEX: _check_text,
    CHOICE: _check_choice,
    GRAMMAR: _check_text,
}
ANY_OBJECT = Constraint(JSON_SCHEMA, {"type": "object"})
"""Any JSON object."""
