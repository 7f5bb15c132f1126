"""`entropix bench`: speed and memory against mlx-lm, as a table."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from ..tables import Table
from .shared import loading, options, output

if TYPE_CHECKING:
    from ..lab.bench.figures import BenchReport, Figure, Ratio

MADE_UP = "caches hold made-up keys and values, which a step's cost does not depend on"
HOW_TO_READ = "median (lowest to highest); ÷ X: divided by X's figure of the same repeat"


def add_parser(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)
    options.add_model(parser)
    add = parser.add_argument
    add("--quick", action="store_true", help="less of everything, in under two minutes")
    add("--json", action="store_true", help="print one object with every figure")
    options.add_draft_model(parser)


def run(arguments: argparse.Namespace) -> int:
    chosen = options.model_options(arguments)
    model, tokenizer = loading.load_model(chosen)
    draft = loading.load_draft(chosen, model, tokenizer)
    from ..lab.bench.bench import bench
    from ..lab.bench.figures import FULL, QUICK

    report = bench(
        model,
        tokenizer,
        QUICK if arguments.quick else FULL,
        draft_model=draft,
        on_progress=lambda what: output.report(f"measuring: {what} …"),
    )
    if arguments.json:
        output.write_json({"model": chosen.name} | report.to_dict(), indent=2)
    else:
        output.write("\n".join(_report(chosen.name, report)) + "\n")
    return 0


def _report(model: str, report: BenchReport) -> Iterator[str]:
    machine = report.machine
    yield (
        f"{model} on {machine.system} {machine.processor}, {machine.cores} cores,"
        f" {machine.device}, MLX {machine.mlx}, mlx-lm {machine.mlx_lm}"
    )
    yield f"decoding runs of {report.effort.tokens} tokens; {MADE_UP}"
    yield HOW_TO_READ
    for section, figures in groupby(report.rows, lambda figure: figure.section):
        yield "\n" + _table(section, list(figures)).to_text().rstrip()
    yield f"\n{report.seconds:.0f} s in all"


def _table(section: str, figures: Sequence[Figure]) -> Table:
    others = dict.fromkeys(ratio.other for figure in figures for ratio in figure.ratios)
    rows = []
    for figure in figures:
        ratios = {ratio.other: _spread(ratio, figure.repeats) for ratio in figure.ratios}
        measured = (_spread(figure, figure.repeats), figure.unit)
        compared = (ratios.get(other, "") for other in others)
        rows.append((figure.name, figure.case, *measured, *compared, figure.note))
    header = ("", "", "median", "", *(f"÷ {other}" for other in others), "")
    return Table(header, rows, section.upper())


def _spread(found: Figure | Ratio, repeats: int) -> str:
    around = f" ({_number(found.low)} to {_number(found.high)})" if repeats > 1 else ""
    return _number(found.median) + around


def _number(value: float) -> str:
    """Return a number with three significant digits, or all before the decimal point."""
    decimals = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:.{decimals}f}"
