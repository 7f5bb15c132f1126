"""Pieces of grammars in Lark's syntax, as llguidance reads it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..constraints.matcher import WHITE_SPACE


def json_rule(schema: Mapping[str, Any], special: Mapping[str, int] | None = None) -> str:
    """Return the rule of a JSON text that fits a schema."""
    options = {"whitespace_pattern": WHITE_SPACE}
    return f"%json {json.dumps({**schema, 'x-guidance': options})}"


def literal(text: str, special: Mapping[str, int]) -> str:
    """Return the rule of a text: special tokens by their ids, the rest quoted."""
    pieces = [text]
    for token in special:
        pieces = [part for piece in pieces for part in _split(piece, token)]
    named = (f"<[{special[p]}]>" if p in special else json.dumps(p) for p in pieces if p)
    return " ".join(named)


def _split(text: str, token: str) -> list[str]:
    before, *rest = text.split(token)
    return [before, *(part for piece in rest for part in (token, piece))]
