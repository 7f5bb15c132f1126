"""`entropix view`: show a recorded trace in the terminal UI, without a model."""

from __future__ import annotations

import argparse

from ..traces.logprobs import read_answer
from .shared import options, output

INSTEAD = "entropix report makes a page of the trace instead"


def add_parser(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)
    parser.add_argument("trace", help="a trace, or responses of an API with logprobs")
    options.add_number_of_answer(parser)


def run(arguments: argparse.Namespace) -> int:
    from entropix_mlx.tui.terminal import require_full_screen
    from entropix_mlx.tui.viewer import ViewerApp

    require_full_screen(INSTEAD)
    trace = read_answer(arguments.trace, arguments.answer)
    output.check_screen(INSTEAD)
    app = ViewerApp.of_trace(trace, arguments.configuration)
    app.run()
    return app.return_code or 0
