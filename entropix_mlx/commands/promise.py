"""`entropix promise`: how many of the answers that were given are wrong, and what was promised."""

from __future__ import annotations

import argparse
from typing import Any

from ..answer.promise import (
    ANSWERS,
    RECENT,
    Promise,
    PromiseState,
    promises_file,
    read_marks,
    read_promises,
    to_text,
)
from ..errors import OutputError, PromptError
from ..files import write_whole, writing
from ..lab.evaluation.report import percent
from ..profiles.confidence import SCORES
from ..tables import Table
from .shared import options, output


def add_parser(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)
    add = parser.add_argument
    add("--of", metavar="MODEL", help="the model's name (default: show the promises of all)")
    add("--kind", default=ANSWERS, help=f"of answers, a name of your own (default: {ANSWERS})")
    add("--risk", type=float, help="promise that at most this share of what is given is wrong")
    add("--score", choices=tuple(SCORES), help="use another score; marks begin anew")
    marked = "marks: answers of entropix eval --output, or lines with right and score"
    add("--jsonl", type=options.file, metavar="FILE", help=marked)
    add("--export", type=options.file, metavar="FILE", help="write all promises, with their marks")
    add("--json", action="store_true", help="print the figures as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Change a promise or import marks if asked to, then show the promises."""
    changes = [arguments.risk, arguments.score, arguments.jsonl]
    if any(change is not None for change in changes):
        if not arguments.of:
            raise PromptError("name the model whose promise is meant with --of MODEL")
        promise = Promise(arguments.of, arguments.kind)
        marks = read_marks(arguments.jsonl) if arguments.jsonl else []
        if arguments.risk is not None or arguments.score:
            promise.promise(arguments.risk, arguments.score)
        if marks:
            promise.mark_all(marks)
    promises = read_promises(promises_file())
    if arguments.of:
        key = f"{arguments.of}/{arguments.kind}"
        promises = {key: promises.get(key, PromiseState())}
    if arguments.export:
        with writing(arguments.export, OutputError):
            write_whole(arguments.export, to_text(promises))
    _show({name: state.report() for name, state in promises.items()}, arguments.json)
    return 0


def _show(reports: dict[str, dict[str, Any]], as_json: bool) -> None:
    if as_json:
        output.write_json(reports, indent=2)
        return
    if not reports:
        output.report("nothing is promised yet: entropix promise --of MODEL --risk 0.2")
        return
    header = ("model/kind", "promised", "risk", "coverage", "least left out", "marks", "threshold")
    rows = [(name, *_cells(report)) for name, report in reports.items()]
    note = f"risk: of the last {RECENT} given; coverage and least left out: of the last {RECENT}"
    output.write(Table(header, rows, note=note).to_text())
    for name, report in reports.items():
        if report["least_left_out"] == 1:
            risk = percent(report["promised_risk"])
            output.report(
                f"{name}: by {report['score']} no threshold reaches {risk} on the last {RECENT}"
                " marks; all must be left out, or --risk be higher"
            )


def _cells(report: dict[str, Any]) -> tuple[str, ...]:
    shares = ("promised_risk", "rolling_risk", "rolling_coverage", "least_left_out")
    found = ("–" if report[name] is None else percent(report[name]) for name in shares)
    threshold = report["threshold"]
    shown = "–" if threshold is None else f"{report['score']} {threshold:.4g}"
    return *found, str(report["marks"]), shown
