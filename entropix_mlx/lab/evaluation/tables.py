"""Tables of results, as text for a terminal and as Markdown."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .results import Accuracy, Contrast, Results
from .statistics import Interval


@dataclass(frozen=True)
class Table:
    """A table whose cells are ready to print; the first column holds names."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""

    def to_text(self) -> str:
        """Return the table for a terminal."""
        rows = [self.header, *self.rows]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(
                cell.rjust(width) if place else cell.ljust(width)
                for place, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        ]
        return "\n".join([self.title, *lines, *([self.note] if self.note else [])]) + "\n"

    def to_markdown(self) -> str:
        """Return the table in Markdown."""
        rule = ("---", *("---:" for _ in self.header[1:]))
        lines = ["| " + " | ".join(_escaped(row)) + " |" for row in (self.header, rule, *self.rows)]
        return "\n".join([f"**{self.title}**", "", *lines, *(["", self.note] if self.note else [])])


def _escaped(row: Sequence[str]) -> list[str]:
    return [cell.replace("|", "\\|") for cell in row]


def percent(share: float) -> str:
    """Return a share as a text such as "62.5 %"."""
    return "–" if math.isnan(share) else f"{100 * share:.1f} %"


def interval(
    bounds: Interval, form: Callable[[float], str] = lambda value: f"{100 * value:.1f}"
) -> str:
    """Return an interval as a text; shares are told in percent."""
    return "–" if math.isnan(bounds.low) else f"{form(bounds.low)} … {form(bounds.high)}"


def p_value(p: float) -> str:
    """Return a p-value as a text."""
    return "< 0.0001" if p < 0.0001 else f"{p:.4f}"


def result_tables(results: Results) -> list[Table]:
    """Return the accuracies and, where there are several arms, the contrasts."""
    if not results.accuracies:
        return []
    tables = [
        Table(
            "Accuracy",
            ("arm", "questions", "n", "right", "accuracy", "95 % (Wilson)", "committed",
             "discarded", "tokens a right answer"),
            tuple(_accuracy_row(accuracy) for accuracy in results.accuracies),
        )
    ]  # fmt: skip
    if results.contrasts:
        tables.append(
            Table(
                "Contrasts, paired by question",
                ("first − second", "questions", "wins", "losses", "points", "95 % (bootstrap)",
                 "p (sign test)", "p (Holm)"),
                tuple(_contrast_row(contrast) for contrast in results.contrasts),
            )
        )  # fmt: skip
    return tables


def _accuracy_row(accuracy: Accuracy) -> tuple[str, ...]:
    each = accuracy.tokens_per_right_answer
    return (
        accuracy.arm,
        accuracy.rung,
        str(accuracy.n),
        str(accuracy.right),
        percent(accuracy.accuracy),
        interval(accuracy.interval),
        str(accuracy.committed),
        str(accuracy.discarded),
        "–" if each is None else f"{each:.1f}",
    )


def _contrast_row(contrast: Contrast) -> tuple[str, ...]:
    return (
        f"{contrast.first} − {contrast.second}",
        str(contrast.questions),
        str(contrast.wins),
        str(contrast.losses),
        f"{100 * contrast.difference:+.1f}",
        interval(contrast.interval, lambda value: f"{100 * value:+.1f}"),
        p_value(contrast.p_value),
        p_value(contrast.adjusted),
    )
