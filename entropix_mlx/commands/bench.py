"""`entropix bench`: speed against mlx-lm, as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ..tables import Table
from .shared import loading, output
from .shared.options import FIRST, ModelOptions, command

if TYPE_CHECKING:
    from ..lab.bench import BenchReport, Figure


@command()
def bench(
    *,
    model: ModelOptions = ModelOptions(),
    json: Annotated[bool, Parameter(group=FIRST)] = False,
) -> int:
    """Measure speed and memory against mlx-lm.

    Args:
        json: print one object with every figure and what the machine is, but no name and no path
    """
    loaded, tokenizer = loading.load_model(model)
    from ..lab.bench import bench

    report = bench(
        loaded, tokenizer, on_progress=lambda what: output.report(f"measuring: {what} …")
    )
    if json:
        output.write_json({"model": model.name} | report.to_dict(), indent=2)
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
