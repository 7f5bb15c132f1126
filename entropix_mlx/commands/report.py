"""`entropix report`: write one or two recorded traces as a page for a browser."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..errors import TraceError
from ..traces.report import render
from ..traces.trace import read_trace
from . import terminal


def add_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.set_defaults(run=run)
    add = parser.add_argument
    add("traces", nargs="+", metavar="TRACE", help="a file that --trace wrote; two are compared")
    add("--output", "-o", metavar="FILE", help="the page to write (default: print it)")


def run(arguments: argparse.Namespace) -> int:
    """Write a report of one trace, or of two side by side."""
    page = render([read_trace(trace) for trace in arguments.traces])
    if arguments.output is None:
        terminal.write(page)
        return 0
    try:
        Path(arguments.output).write_text(page, encoding="utf-8")
    except OSError as error:
        raise TraceError(f"cannot write {arguments.output}: {error.strerror}") from error
    terminal.tell(f"wrote {arguments.output}: open it in a browser")
    return 0
