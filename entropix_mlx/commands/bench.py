"""`entropix bench`: speed against mlx-lm, as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from .._version import REPOSITORY
from ..errors import OutputError
from ..files import check_target, write_whole, writing
from ..records import to_json
from ..tables import Table
from .shared import loading, output
from .shared.options import FIRST, File, ModelOptions, command

if TYPE_CHECKING:
    from ..lab.bench import BenchReport, Figure

FORM = f"{REPOSITORY}/issues/new?template=benchmark.yml"


@command()
def bench(
    *,
    model: ModelOptions = ModelOptions(),
    json: Annotated[bool, Parameter(group=FIRST)] = False,
    submit: Annotated[File, Parameter(group=FIRST)] = None,
) -> int:
    """Measure speed and memory against mlx-lm.

    Args:
        json: print one object with every figure and what the machine is, but no name and no path
        submit: write that object to this file, and print where reports are collected
    """
    if submit is not None:
        check_target(submit)
    loaded, tokenizer = loading.load_model(model)
    from ..lab.bench import bench

    report = bench(
        loaded, tokenizer, on_progress=lambda what: output.report(f"measuring: {what} …")
    )
    record = {"model": model.name} | report.to_dict()
    if submit is not None:
        with writing(submit, OutputError):
            write_whole(submit, to_json(record, indent=2) + "\n")
        output.report(f"look through {submit}, and add it to a report at {FORM}")
    if json:
        output.write_json(record, indent=2)
    else:
        output.write(_table(model.name, report).to_text())
    return 0


def _table(model: str, report: BenchReport) -> Table:
    machine = report.machine
    title = (
        f"{model} ({report.weights}) on {machine['chip']}, {machine['memory'] / 1e9:.0f} GB,"
        f" {machine['cores']} cores, {machine['system']}, {machine['device']},"
        f" MLX {machine['mlx']}, mlx-lm {machine['mlx_lm']}"
    )
    note = (
        f"{report.tokens} tokens an answer; median (lowest to highest) of {report.repeats} runs;"
        " ratio: median of the quotients with mlx-lm in the same repeat"
    )
    header = ("", "at once", "tokens/s", "ratio")
    return Table(header, [_row(figure) for figure in report.figures], title, note)


def _row(figure: Figure) -> tuple[str, ...]:
    spread = f"{figure.median:.3g} ({figure.low:.3g} to {figure.high:.3g})"
    ratio = "" if figure.ratio is None else f"{figure.ratio:.2f}"
    return figure.name, str(figure.answers), spread, ratio
