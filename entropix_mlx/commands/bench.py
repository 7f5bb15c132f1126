"""`entropix bench`: speed and memory against mlx-lm, as a table."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from .._version import REPOSITORY
from ..errors import OutputError
from ..files import check_target, write_whole, writing
from ..palette import to_json
from ..tables import Table
from .shared import loading, options, output

if TYPE_CHECKING:
    from ..lab.bench.figures import BenchReport, Figure, Ratio

FORM = f"{REPOSITORY}/issues/new?template=benchmark.yml"
MADE_UP = "caches hold made-up keys and values, which a step's cost does not depend on"
HOW_TO_READ = "median (lowest to highest); ÷ X: divided by X's figure of the same repeat"


def add_parser(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)
    options.add_model(parser)
    add = parser.add_argument
    add("--quick", action="store_true", help="less of everything, in under two minutes")
    add("--json", action="store_true", help="print one object with every figure")
    add(
        "--submit",
        nargs="?",
        const=Path("entropix-bench.json"),
        type=options.file,
        metavar="FILE",
        help="write the figures and what the machine is, but no name or path, to FILE"
        " (default: %(const)s), and print where reports are collected",
    )
    options.add_draft_model(parser)


def run(arguments: argparse.Namespace) -> int:
    chosen = options.model_options(arguments)
    if arguments.submit is not None:
        check_target(arguments.submit)
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
    record = {"model": chosen.name} | report.to_dict()
    if arguments.submit is not None:
        with writing(arguments.submit, OutputError):
            write_whole(arguments.submit, to_json(record, indent=2) + "\n")
        output.report(f"look through {arguments.submit}, and add it to a report at {FORM}")
    if arguments.json:
        output.write_json(record, indent=2)
    else:
        output.write("\n".join(_report(chosen.name, report)) + "\n")
    return 0


def _report(model: str, report: BenchReport) -> Iterator[str]:
    machine = report.machine
    yield (
        f"{model} ({report.weights}) on {machine.chip}, {machine.memory / 1e9:.0f} GB,"
        f" {machine.cores} cores, {machine.system}, {machine.device}, MLX {machine.mlx},"
        f" mlx-lm {machine.mlx_lm}"
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
