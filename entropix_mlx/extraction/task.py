"""What a model is asked: to fill the fields of a schema from a text, after worked examples."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import limits
from ..api.prompt_file import json_lines
from ..errors import PromptError
from ..records import from_record

MOST_DESCRIBED = 40
"""Fields that the instruction describes at most."""
_INSTRUCTION = "Extract these fields from the text, as JSON:\n{fields}\n\nText:\n"


@dataclass(frozen=True)
class Example:
    """A text with the fields that are to be found in it."""

    text: str
    fields: Mapping[str, Any]


@dataclass(frozen=True)
class Extraction:
    """A schema, and worked examples of it."""

    schema: Mapping[str, Any]
    examples: tuple[Example, ...] = ()

    def messages(self, text: str) -> tuple[dict[str, str], ...]:
        """Return the conversation to go on with.

        All texts have the same beginning, so it is computed once. The worked examples are earlier
        turns.
        """
        turns = [(example.text, _as_json(example.fields)) for example in self.examples]
        asked = [*(given for given, _ in turns), text]
        asked[0] = _INSTRUCTION.format(fields=_described(self.schema)) + asked[0]
        messages = []
        for question, (_, answer) in zip(asked, turns, strict=False):
            messages += [_message("user", question), _message("assistant", answer)]
        return (*messages, _message("user", asked[-1]))


def read_examples(path: str | Path) -> list[Example]:
    """Return examples of a JSON Lines file: objects with `text` and `fields`.

    Raises:
        PromptError: it cannot be read, or has another line or none.
    """
    found = []
    text = limits.read_named(path, limits.PROMPTS_BYTES, PromptError)
    for number, record in json_lines(text, path):
        try:
            found.append(from_record(Example, record))
        except ValueError as error:
            raise PromptError(f"{path}, line {number} is no example: {error}") from error
    if not found:
        raise PromptError(
            f'{path} has no examples: write objects such as {{"text": "…", "fields": {{…}}}}'
        )
    return found


def _described(schema: Mapping[str, Any]) -> str:
    """Return the properties of a schema with their descriptions; the schema if it has none."""
    properties = schema.get("properties")
    if not isinstance(properties, dict) or not 0 < len(properties) <= MOST_DESCRIBED:
        return _as_json(schema)
    return "\n".join(f"- {name}{_detail(one)}" for name, one in properties.items())


def _detail(schema: Any) -> str:
    if not isinstance(schema, dict):
        return ""
    if "properties" in schema or "items" in schema:
        return f": {_as_json(schema)}"
    known = [schema.get("description"), schema.get("format")]
    if isinstance(schema.get("enum"), list):
        known.append("one of " + ", ".join(map(_as_json, schema["enum"])))
    return "".join(f", {one}" for one in known if one).replace(",", ":", 1)


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}
