"""Arguments as Gemma writes them: ``{city:<escape>Paris<escape>,days:3}``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import ConstraintError, brief
from .rules import json_rule, literal

_KEY = re.compile(r"\w+")
_NOTES = {"title", "description", "default", "examples", "type"}
_PLAIN = ("integer", "number", "boolean", "null")


@dataclass(frozen=True)
class GemmaArguments:
    """The rule of arguments that fit a schema; objects and lists hold values of the same kind."""

    quote: str
    """The special token at both ends of a text."""
    nested: bool
    """Whether values may be objects and lists."""

    def rule(self, schema: Mapping[str, Any], special: Mapping[str, int]) -> str:
        """Return the rule of an object.

        Raises:
            ConstraintError: it has something that this format, or this module, cannot say.
        """
        self._check(schema, {"properties", "required", "additionalProperties"})
        if schema.get("additionalProperties"):
            raise ConstraintError("calls of this model have no additionalProperties: leave it out")
        rest, first = "", ""
        for key, value in reversed(schema.get("properties", {}).items()):
            if not _KEY.fullmatch(key):
                raise ConstraintError(f"the property {brief(key)} is no word of letters and digits")
            member = f'"{key}:" {self._value(value, special)}'
            if key in schema.get("required", ()):
                first, rest = f"{member} {rest}", f'"," {member} {rest}'
            else:
                first, rest = f"({member} {rest} | {first})", f'("," {member})? {rest}'
        return f'"{{" {first} "}}"'

    def _value(self, schema: Any, special: Mapping[str, int]) -> str:
        if not isinstance(schema, Mapping):
            raise ConstraintError(f"a schema of a value is an object, not {brief(schema)}")
        options = schema.get("enum", [schema["const"]] if "const" in schema else [])
        are_texts = options and all(isinstance(option, str) for option in options)
        kind = schema.get("type", "string" if are_texts else None)
        if "anyOf" in schema:
            self._check(schema, {"anyOf"})
            return f"({' | '.join(self._value(one, special) for one in schema['anyOf'])})"
        if kind == "string":
            self._check(schema, {"enum", "const"})
            if self.quote not in special:  # the text would not end there
                raise ConstraintError(f"this tokenizer has no special token {self.quote}")
            texts = [literal(str(option), {}) or '""' for option in options]
            quote = literal(self.quote, special)
            return f"{quote} ({' | '.join(texts) or 'QUOTED'}) {quote}"
        if kind in _PLAIN:
            return json_rule(schema)
        if kind == "object" and self.nested:
            return self.rule(schema, special)
        if kind == "array" and self.nested:
            self._check(schema, {"items"})
            item = self._value(schema.get("items"), special)
            return f'"[" ({item} ("," {item})*)? "]"'
        raise ConstraintError(f"calls of this model have no values of the type {brief(kind)}")

    def _check(self, schema: Mapping[str, Any], known: set[str]) -> None:
        for name in schema:
            if name not in _NOTES | known:
                raise ConstraintError(f"calls of this model cannot be held to {brief(name)}")
