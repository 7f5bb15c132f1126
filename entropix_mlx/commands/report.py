"""`entropix report`: write one or two recorded traces as a page for a browser."""

from __future__ import annotations

import argparse

from ..errors import OutputError
from ..files import keep_source, write_whole, writing
from ..traces.report import render
from ..traces.trace import read_trace
from .shared import options, output


def add_parser(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)
    add = parser.add_argument
    written = "a file that --trace or entropix read --output wrote; two are compared"
    add("traces", nargs="+", metavar="TRACE", help=written)
    page = "the page to write (default: print it)"
    add("--output", "-o", type=options.file, metavar="FILE", help=page)


def run(arguments: argparse.Namespace) -> int:
    for trace in arguments.traces:
        keep_source(arguments.output, trace)
    page = render([read_trace(trace) for trace in arguments.traces])
    if arguments.output is None:
        output.write(page)
        return 0
    with writing(arguments.output, OutputError):
        write_whole(arguments.output, page)
    output.report(f"wrote {arguments.output}: open it in a browser")
    return 0
