"""`entropix report`: write one or two recorded traces as a page for a browser."""

from __future__ import annotations

import argparse

from ..errors import OutputError
from ..files import write_whole, writing
from ..traces.reading import read_trace
from ..traces.report import render
from . import options, terminal


def add_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.set_defaults(run=run)
    add = parser.add_argument
    add("traces", nargs="+", metavar="TRACE", help="a file that --trace wrote; two are compared")
    add(
        "--output",
        "-o",
        type=options.file,
        metavar="FILE",
        help="the page to write (default: print it)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Write a report of one trace, or of two side by side."""
    page = render([read_trace(trace) for trace in arguments.traces])
    if arguments.output is None:
        terminal.write(page)
        return 0
    with writing(arguments.output, OutputError):
        write_whole(arguments.output, page)
    terminal.tell(f"wrote {arguments.output}: open it in a browser")
    return 0
