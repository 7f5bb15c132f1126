"""`entropix bench`: speed and memory against mlx-lm, as a table."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING

from .shared import loading, options, output

if TYPE_CHECKING:
    from ..lab.bench.figures import BenchReport, Figure

NAME_WIDTH, FIGURE_WIDTH, SPREAD_WIDTH = 24, 20, 18
MADE_UP = "caches hold made-up keys and values, which a step's cost does not depend on"
HOW_TO_READ = "÷ X: the figure divided by X's of the same repeat, median (lowest to highest)"


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
        output.write("\n".join(_table(chosen.name, report)) + "\n")
    return 0


def _table(model: str, report: BenchReport) -> Iterator[str]:
    machine = report.machine
    yield (
        f"{model} on {machine.system} {machine.processor}, {machine.cores} cores,"
        f" {machine.device}, MLX {machine.mlx}, mlx-lm {machine.mlx_lm}"
    )
    yield f"decoding runs of {report.effort.tokens} tokens; {MADE_UP}"
    yield HOW_TO_READ
    for section, figures in groupby(report.rows, lambda figure: figure.section):
        yield f"\n{section.upper()}"
        for case, members in groupby(figures, lambda figure: figure.case):
            yield case
            yield from (line for figure in members for line in _lines(figure))
    yield f"\n{report.seconds:.0f} s in all"


def _lines(figure: Figure) -> Iterator[str]:
    median = f"{_number(figure.median)} {figure.unit}"
    spread = _spread(figure.repeats, _number(figure.low), _number(figure.high))
    start = f"  {figure.name:{NAME_WIDTH}}{median:>{FIGURE_WIDTH}}{spread:{SPREAD_WIDTH}}  "
    remarks = [
        f"{ratio.median:.2f} ÷ {ratio.other}"
        + _spread(figure.repeats, f"{ratio.low:.2f}", f"{ratio.high:.2f}")
        for ratio in figure.ratios
    ]
    remarks += [figure.note] if figure.note else []
    for remark in remarks or [""]:
        yield f"{start}{remark}".rstrip()
        start = " " * len(start)


def _spread(repeats: int, low: str, high: str) -> str:
    return f" ({low} to {high})" if repeats > 1 else ""


def _number(value: float) -> str:
    """Return a number with three significant digits, or all before the decimal point."""
    decimals = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:.{decimals}f}"
