"""The command line: `entropix` and ``python -m entropix_mlx``.

Each subcommand has a file in `commands` that declares its options, calls the library and prints; it
is imported when the subcommand is asked for. Only `main` turns an error into a message and an exit
code.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NoReturn

from ._version import __version__
from .commands.shared import output
from .commands.shared.output import BROKEN_PIPE, INTERRUPTED, USAGE
from .errors import EntropixError, first_line
from .profiles.fields import nearest

if TYPE_CHECKING:
    from .commands.ranks.shares import Ranks

COMMANDS = {
    "generate": ("generate", "answer one prompt, or a file of them"),
    "extract": ("extract", "fill the fields of a JSON schema from documents"),
    "chat": ("chat", "converse with a model"),
    "serve": ("serve", "answer the requests of OpenAI's clients"),
    "calibrate": ("calibrate", "solve the thresholds for a model"),
    "view": ("view", "look at a recorded trace"),
    "convert": ("convert", "write a model as a folder that mlx-lm loads, too"),
    "models": ("machine.models", "list the models on this machine, or download one"),
    "doctor": ("machine.doctor", "tell what this machine is, what is slow on it, and what to do"),
    "compare": ("compare", "let several samplers answer one prompt"),
    "read": ("read", "measure a text that is given, without generating"),
    "eval": ("evaluate", "answer questions with known answers, and grade the answers"),
    "promise": ("promise", "show how well a promised risk was kept, and mark answers"),
    "report": ("report", "write a recorded trace as a page for a browser"),
    "profile": ("profile", "show, compare or check profiles"),
    "bench": ("bench", "measure speed and memory against mlx-lm"),
}
"""Subcommands: the module in `commands`, and its purpose."""
CONFIGURED = ("chat", "view")
"""Subcommands that read the user's own configuration file without being told to."""


def main(argv: Sequence[str] | None = None, ranks: Ranks | None = None) -> int:
    """Run a command line and return its exit code; `ranks` are those of a group, on rank 0."""
    output.prepare()
    try:
        return perform(argv, ranks)
    except EntropixError as error:
        output.report_error(str(error))
        return USAGE
    except MemoryError:
        output.report_error("the memory is full: choose a smaller model or a shorter text")
        return USAGE
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return BROKEN_PIPE
    finally:
        output.settle()


def perform(argv: Sequence[str] | None = None, ranks: Ranks | None = None) -> int:
    """Run a command line as `main` does, but raise its errors."""
    arguments = parse(argv)
    arguments.ranks = ranks
    output.set_verbose(getattr(arguments, "verbose", True))
    _check_current_folder()
    if ranks is not None:
        from .commands.ranks import coordinator

        coordinator.check_command(arguments)
    return int(arguments.run(arguments))


def _check_current_folder() -> None:
    try:
        os.getcwd()
    except OSError as error:  # libraries that are imported later would end with a traceback
        raise EntropixError("the current folder was deleted: change to another one") from error


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of a command line, with the defaults of a configuration file if any.

    The attribute `configuration` is that file, and `typed` are the options without it.

    Raises:
        ConfigurationError: the file cannot be read, or a value in it is impossible.
    """
    parser = build_parser()
    arguments = typed = parser.parse_args(argv)
    configuration = None
    if arguments.config is not None or arguments.subcommand_name in CONFIGURED:
        from .commands.shared import config_defaults
        from .configuration import Configuration

        path = arguments.config
        configuration = Configuration.load(path) if path else Configuration.load_default()
        subcommands = parser.get_default("subcommands")
        own = subcommands[arguments.subcommand_name]
        config_defaults.set_defaults(
            own, configuration, lambda: (other.filled() for other in subcommands.values())
        )
        arguments = parser.parse_args(argv)
    arguments.configuration, arguments.typed = configuration, typed
    return arguments


class Parser(argparse.ArgumentParser):
    """A parser that prints as all else is printed; those of its subcommands do, too."""

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print help or usage; argparse itself says nothing where stdout takes nothing."""
        if file is sys.stdout:
            output.write(message)
        else:
            output.report(message, end="")

    def error(self, message: str) -> NoReturn:
        output.report_error(f"{message} ({self.prog} --help lists all options)")
        self.exit(USAGE)


class Subcommand(Parser):
    """The parser of a subcommand, which gets its options when it is asked for."""

    name = ""
    """As in `COMMANDS`; empty once the options are there, and in a subcommand's own subparsers."""

    def filled(self) -> Subcommand:
        if self.name:
            from .commands.shared import options

            name, self.name = self.name, ""
            module, _ = COMMANDS[name]
            import_module(f".commands.{module}", __package__).add_parser(self)
            usual = "your own" if name in CONFIGURED else "none"
            what = f"take defaults of options from this file (default: {usual})"
            self.add_argument("--config", type=options.file, metavar="FILE", help=what)
            self.set_defaults(subcommand_name=name)
        return self

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self.filled()
        if self._subparsers is None:  # those have options of their own
            self._refuse_unknown(takewhile("--".__ne__, args))
        return super().parse_known_args(args, namespace)

    def _refuse_unknown(self, words: Iterable[str]) -> None:
        """Name the first unknown option; argparse would complain about missing ones instead."""
        known = [name[2:] for name in self._option_string_actions if name.startswith("--")]
        for word in words:
            option = word.split("=")[0]
            if word.startswith("--") and " " not in option and option[2:] not in known:
                near = nearest(option.removeprefix("--"), known)
                advice = f"; did you mean --{near}?" if near else ""
                self.error(f"there is no option {option}{advice}")


class ShowVersion(argparse.Action):
    """`--version`: what is installed is looked up, and MLX imported, only when asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        from ._version import installed_versions

        try:
            import mlx.core as mx

            device = mx.default_device().type.name
        except Exception as error:  # whatever keeps MLX from being imported
            device = f"unknown: MLX does not work ({first_line(error)})"
        others = list(installed_versions().items())[1:]
        lines = [f"entropix_mlx {__version__}", *(f"{name} {of}" for name, of in others)]
        output.write("\n".join([*lines, f"device {device}"]) + "\n")
        parser.exit()


def build_parser() -> Parser:
    parser = Parser(
        prog="entropix",
        description="Generate text with a local model that watches its own uncertainty.",
    )
    what = "show the version, those of MLX and mlx-lm, and the device that MLX uses"
    parser.add_argument("--version", action=ShowVersion, nargs=0, help=what)
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=Subcommand)
    subcommands = {}
    for name, (_, purpose) in COMMANDS.items():
        subcommands[name] = commands.add_parser(name, help=purpose, allow_abbrev=False)
        subcommands[name].name = name
    parser.set_defaults(subcommands=subcommands)
    return parser
