"""Tables for a terminal or in Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """A table whose cells are ready to print; the first column holds names."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    note: str = ""

    def to_text(self) -> str:
        rows = [self.header, *self.rows]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(
                cell.rjust(width) if place else cell.ljust(width)
                for place, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        ]
        around = [[self.title], lines, [self.note]]
        return "\n".join(line for part in around for line in part if line) + "\n"

    def to_markdown(self) -> str:
        rule = ("---", *("---:" for _ in self.header[1:]))
        rows = [[cell.replace("|", "\\|") for cell in row] for row in self.rows]
        lines = [f"| {' | '.join(row)} |" for row in (self.header, rule, *rows)]
        return "\n".join([f"**{self.title}**", "", *lines, *(["", self.note] if self.note else [])])
