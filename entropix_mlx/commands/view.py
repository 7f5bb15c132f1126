"""`entropix view`: show a recorded trace in the terminal UI, without a model."""

from __future__ import annotations

import argparse

from ..traces.trace import read_trace
from .shared import output

INSTEAD = "entropix report makes a page of the trace instead"


def add_parser(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)
    parser.add_argument("trace", help="a file that --trace or entropix read --output wrote")


def run(arguments: argparse.Namespace) -> int:
    from entropix_mlx.tui.terminal import require_full_screen
    from entropix_mlx.tui.viewer import ViewerApp

    require_full_screen(INSTEAD)
    trace = read_trace(arguments.trace)
    output.check_screen(INSTEAD)
    app = ViewerApp.of_trace(trace, arguments.configuration)
    app.run()
    return app.return_code or 0
