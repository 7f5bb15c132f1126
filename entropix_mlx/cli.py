"""The command line: `entropix` and ``python -m entropix_mlx``.

Each subcommand has a file in `commands` that declares its options, calls the library and prints.
Only `main` turns an error into a message and an exit code.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from ._version import __version__
from .commands import (
    bench,
    calibrate,
    chat,
    compare,
    convert,
    evaluate,
    generate,
    models,
    profile,
    read,
    report,
    serve,
    tokens,
    view,
)
from .commands.ranks.coordinator import check_command
from .commands.ranks.shares import Ranks
from .commands.shared import config_defaults, output, streams
from .commands.shared.exit_codes import BROKEN_PIPE, INTERRUPTED, USAGE
from .commands.shared.output import LibraryLog
from .errors import EntropixError


def main(argv: Sequence[str] | None = None, ranks: Ranks | None = None) -> int:
    """Run a command line and return its exit code.

    Args:
        argv: its words; None for those of this process.
        ranks: on rank 0 of a group.
    """
    streams.prepare()
    _show_log()
    try:
        return perform(argv, ranks)
    except EntropixError as error:
        output.tell_error(str(error))
        return USAGE
    except MemoryError:
        output.tell_error("the memory is full: choose a smaller model or a shorter text")
        return USAGE
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return BROKEN_PIPE
    finally:
        streams.settle()


def perform(argv: Sequence[str] | None = None, ranks: Ranks | None = None) -> int:
    """Run a command line as `main` does, but raise its errors."""
    arguments = parse(argv)
    arguments.ranks = ranks
    _check_current_folder()
    if ranks is not None:
        check_command(arguments)
    return int(arguments.run(arguments))


def _show_log() -> None:
    """Print on stderr what the library logs, once however often `main` is called."""
    logger = logging.getLogger("entropix_mlx")
    logger.setLevel(logging.INFO)
    if not any(isinstance(handler, LibraryLog) for handler in logger.handlers):
        logger.addHandler(LibraryLog())


def _check_current_folder() -> None:
    try:
        os.getcwd()
    except OSError as error:  # libraries that are imported later would end with a traceback
        raise EntropixError("the current folder was deleted: change to another one") from error


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of a command line, and those of a configuration file where there is one.

    Raises:
        ConfigurationError: the file cannot be read, or a value in it is impossible.
    """
    parser = build_parser()
    arguments = parser.parse_args(argv)
    configuration = config_defaults.configuration_of(arguments)
    if configuration is not None:
        everyone = parser.get_default("subcommands")
        config_defaults.set_defaults(arguments.subcommand, configuration, everyone)
        arguments = parser.parse_args(argv)
    arguments.configuration = configuration
    return arguments


class Parser(argparse.ArgumentParser):
    """A parser whose messages are as short as all others; those of its subcommands are too."""

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print help or usage; argparse itself says nothing where stdout takes nothing."""
        if file is sys.stdout:
            output.write(message)
        else:
            output.tell(message, end="")

    def error(self, message: str) -> NoReturn:
        """Print a message to stderr, and exit."""
        output.tell_error(f"{message} ({self.prog} --help lists all options)")
        self.exit(USAGE)


def build_parser() -> Parser:
    """Return the parser of the whole command line."""
    parser = Parser(
        prog="entropix",
        description="Generate text with a local model that watches its own uncertainty.",
    )
    parser.add_argument("--version", action="version", version=f"entropix_mlx {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    subcommands = []
    for command, name, purpose in (
        (generate, "generate", "answer one prompt, or a file of them"),
        (chat, "chat", "converse with a model"),
        (serve, "serve", "answer the requests of OpenAI's clients"),
        (calibrate, "calibrate", "solve the thresholds for a model"),
        (view, "view", "look at a recorded trace"),
        (convert, "convert", "write a model as a folder that mlx-lm loads, too"),
        (models, "models", "list the models on this machine"),
        (compare, "compare", "let several samplers answer one prompt"),
        (read, "read", "measure a text that is given, without generating"),
        (evaluate, "eval", "answer questions with known answers, and say how well"),
        (report, "report", "write a recorded trace as a page for a browser"),
        (profile, "profile", "show, compare or check profiles"),
        (tokens, "tokens", "list reserved and under-trained tokens of a model"),
        (bench, "bench", "measure speed and memory against mlx-lm"),
    ):
        subcommand = commands.add_parser(name, help=purpose, allow_abbrev=False)
        command.add_parser(subcommand)
        config_defaults.add_config(subcommand, by_itself=command in (chat, view))
        subcommand.set_defaults(subcommand=subcommand, subcommand_name=name)
        subcommands.append(subcommand)
    parser.set_defaults(subcommands=subcommands)
    return parser
