"""A structured answer as a form: its fields, each with a sign and colour for its probability."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from textual.content import Content

from entropix_mlx.constraints.fields import Field, fields_of
from entropix_mlx.records import printable
from entropix_mlx.step import Step

from ..drawing import DIM
from ..styles import graded

MOST_TEXT = 60
"""Characters of a value."""
MOST_LINES = 16
NOTABLE_STRAIN = 1.0
"""Bits: half of the probability was on tokens that are not allowed."""


def is_structured(steps: Sequence[Step]) -> bool:
    """Return whether an answer was bound by a constraint; reasoning before it is not."""
    return bool(steps) and steps[-1].strain is not None


def form(steps: Sequence[Step]) -> Content:
    if not is_structured(steps) or steps[-1].finish_reason is None:
        return Content()
    fields = [field for field in fields_of(steps) if field.pointer]
    lines = [field_line(field) for field in fields[:MOST_LINES]]
    if len(fields) > MOST_LINES:
        lines.append(Content(f"… {len(fields) - MOST_LINES} more"))
    return Content("\n").join(lines)


def field_line(field: Field) -> Content:
    name = field.pointer.removeprefix("/") or "the answer"
    strain = f"  strain {field.strain:.1f} bits" if field.strain >= NOTABLE_STRAIN else ""
    return value_line(name, field.value, field.probability) + Content.styled(strain, DIM)


def value_line(name: str, value: Any, probability: float) -> Content:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return Content.assemble(
        graded(probability), Content.styled(f" {printable(name)}: ", "bold"), shortened(text)
    )


def shortened(text: str) -> str:
    line = printable(" ".join(text.split()))
    return line if len(line) <= MOST_TEXT else f"{line[: MOST_TEXT - 1]}…"
