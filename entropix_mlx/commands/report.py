"""`entropix report`: write one or two recorded traces as a page for a browser, or as a picture."""

from __future__ import annotations

import argparse

from ..errors import OutputError
from ..files import keep_source, write_whole, writing
from ..traces.logprobs import read_answer
from ..traces.report import render
from ..traces.share import PICTURES, rendered
from .shared import options, output


def add_parser(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)
    add = parser.add_argument
    written = "a trace, or responses of an API with logprobs; two are compared"
    add("traces", nargs="+", metavar="TRACE", help=written)
    options.add_number_of_answer(parser)
    page = "the page to write (default: print it); .svg and .png are a picture of one answer"
    add("--output", "-o", type=options.file, metavar="FILE", help=page)


def run(arguments: argparse.Namespace) -> int:
    for trace in arguments.traces:
        keep_source(arguments.output, trace)
    traces = [read_answer(trace, arguments.answer) for trace in arguments.traces]
    if arguments.output is None:
        output.write(render(traces))
        return 0
    suffix = arguments.output.suffix.lower()
    page = rendered(traces, suffix)
    with writing(arguments.output, OutputError):
        write_whole(arguments.output, page)
    advice = "" if suffix in PICTURES else ": open it in a browser"
    output.report(f"wrote {arguments.output}{advice}")
    return 0
