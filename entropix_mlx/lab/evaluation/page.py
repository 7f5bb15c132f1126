"""A page about a run for a browser: its tables, accuracies with intervals, risk over coverage.

It needs no script and no network, and depends on nothing but the answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib import resources
from string import Template

from ...palette import printable
from .confidence import Separation
from .report import EvaluationReport, ReportTable
from .results import Accuracy

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#888888")
"""Okabe and Ito's, which colour-blind readers can tell apart."""
DASHES = ("", "6 3", "2 3")
_LEFT, _WIDTH, _ROW, _HEIGHT = 240, 460, 22, 300
_CURVE_POINTS = 100


def render(report: EvaluationReport) -> str:
    """Return the page of a run."""
    parts = [
        "<h1>Evaluation</h1>",
        f'<p class="faint">{_text(report.model)}, {_text(report.form)} form;'
        f" {sum(map(len, report.questions.values()))} questions</p>",
        "<h2>Accuracy, with Wilson’s 95 % interval</h2>",
        _accuracy_chart(report.results.accuracies),
    ]
    for arm in dict.fromkeys(separation.arm for separation in report.separations):
        own = [separation for separation in report.separations if separation.arm == arm]
        parts += [f"<h2>Risk over coverage: {_text(arm)}</h2>", _risk_chart(own)]
    parts += [_table(table) for table in report.tables()]
    page = resources.files(__package__) / "page.html"
    return Template(page.read_text(encoding="utf-8")).substitute(
        title=_text(f"{report.model} – entropix eval"), body="".join(parts)
    )


def _text(text: str) -> str:
    return escape(printable(text).encode("utf-8", "replace").decode("utf-8"))


def _table(table: ReportTable) -> str:
    head = "".join(f"<th>{_text(cell)}</th>" for cell in table.header)
    rows = "".join(
        f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in row)}</tr>" for row in table.rows
    )
    return (
        f'<h2>{_text(table.title)}</h2><div class="wide"><table><tr>{head}</tr>{rows}</table>'
        f'</div><p class="faint">{_text(table.note)}</p>'
    )


def _accuracy_chart(accuracies: Sequence[Accuracy]) -> str:
    """Draw a dot and its interval for each arm and level, from 0 to 100 %."""
    colours = _colours([accuracy.arm for accuracy in accuracies])
    ordered = sorted(accuracies, key=lambda accuracy: _first(accuracies, accuracy.level))
    height = _ROW * len(ordered)
    rows = []
    for place, accuracy in enumerate(ordered):
        y = _ROW * (place + 0.5)
        low, high = (_LEFT + _WIDTH * bound for bound in accuracy.interval)
        rows.append(
            f'<text x="0" y="{y + 4:g}">{_text(accuracy.level)} · {_text(accuracy.arm)}</text>'
            f'<line class="bound" x1="{low:.1f}" x2="{high:.1f}" y1="{y:g}" y2="{y:g}"/>'
            f'<circle cx="{_LEFT + _WIDTH * accuracy.accuracy:.1f}" cy="{y:g}" r="4"'
            f' fill="{colours[accuracy.arm]}"/>'
        )
    return _svg(height, f"{_grid(height)}{''.join(rows)}", "accuracy of each arm and level")


def _first(accuracies: Sequence[Accuracy], level: str) -> int:
    return next(place for place, accuracy in enumerate(accuracies) if accuracy.level == level)


def _risk_chart(found: Sequence[Separation]) -> str:
    """Draw the share of wrong answers among the surest ones, for every score."""
    colours = _colours([separation.score for separation in found])
    lines = []
    for number, separation in enumerate(found):
        dash = DASHES[number // len(COLOURS) % len(DASHES)]
        points = " ".join(
            f"{_LEFT + _WIDTH * step / _CURVE_POINTS:.1f},"
            f"{_HEIGHT * separation.curve.accuracy_at(step / _CURVE_POINTS):.1f}"
            for step in range(1, _CURVE_POINTS + 1)
        )
        colour, y = colours[separation.score], 16 * (number + 1)
        lines.append(
            f'<polyline class="curve" stroke="{colour}" stroke-dasharray="{dash}"'
            f' points="{points}"/><line x1="0" x2="24" y1="{y - 4}" y2="{y - 4}" stroke="{colour}"'
            f' stroke-width="2" stroke-dasharray="{dash}"/>'
            f'<text x="30" y="{y}">{_text(separation.score)}</text>'
        )
    up = "".join(
        f'<text class="faint" x="{_LEFT - 6}" y="{_HEIGHT * (1 - tick / 100) + 4:g}"'
        f' text-anchor="end">{tick} %</text>'
        for tick in (25, 50, 75, 100)
    )
    return _svg(_HEIGHT, f"{_grid(_HEIGHT)}{up}{''.join(lines)}", "risk over coverage")


def _grid(height: float) -> str:
    return "".join(
        f'<line class="grid" x1="{_LEFT + _WIDTH * tick / 100:g}" y1="0"'
        f' x2="{_LEFT + _WIDTH * tick / 100:g}" y2="{height:g}"/>'
        f'<text class="faint" x="{_LEFT + _WIDTH * tick / 100:g}" y="{height + 16:g}"'
        f' text-anchor="middle">{tick} %</text>'
        for tick in (0, 25, 50, 75, 100)
    )


def _svg(height: float, content: str, label: str) -> str:
    return (
        f'<svg viewBox="0 -6 {_LEFT + _WIDTH + 20} {height + 30:g}" role="img"'
        f' aria-label="{label}">{content}</svg>'
    )


def _colours(names: Sequence[str]) -> dict[str, str]:
    distinct = list(dict.fromkeys(names))
    return {name: COLOURS[place % len(COLOURS)] for place, name in enumerate(distinct)}
