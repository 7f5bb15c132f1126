"""The command line: `entropix` and ``python -m entropix_mlx``.

Each subcommand has a file in `commands` that declares its options, calls the library and prints.
Only `main` turns an error into a message and an exit code.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from ._version import __version__
from .commands import (
    BROKEN_PIPE,
    INTERRUPTED,
    USAGE,
    bench,
    calibrate,
    chat,
    compare,
    convert,
    generate,
    models,
    profile,
    report,
    tokens,
    view,
)
from .errors import EntropixError


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code."""
    arguments = build_parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except EntropixError as error:
        print(f"entropix: {error}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Python flushes stdout once more when it exits; there must be somewhere for that to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    parser = argparse.ArgumentParser(
        prog="entropix",
        description="Generate text with a local model that watches its own uncertainty.",
    )
    parser.add_argument("--version", action="version", version=f"entropix_mlx {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command, name, purpose in (
        (generate, "generate", "answer one prompt"),
        (chat, "chat", "converse with a model"),
        (calibrate, "calibrate", "solve the thresholds for a model"),
        (view, "view", "look at a recorded trace"),
        (convert, "convert", "write a model as a folder that mlx-lm loads, too"),
        (models, "models", "list the models on this machine"),
        (compare, "compare", "let several samplers answer one prompt"),
        (report, "report", "write a recorded trace as a page for a browser"),
        (profile, "profile", "show, compare or check profiles"),
        (tokens, "tokens", "list reserved and under-trained tokens of a model"),
        (bench, "bench", "measure speed and memory against mlx-lm"),
    ):
        command.add_parser(commands.add_parser(name, help=purpose, allow_abbrev=False))
    return parser
