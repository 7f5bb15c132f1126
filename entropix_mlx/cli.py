"""The command line: `entropix` and ``python -m entropix_mlx``.

Each command is a function in a file of `commands`, imported when it is asked for. Only `main` turns
an error into a message and an exit code.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from cyclopts import App, CycloptsError, Group, Parameter
from cyclopts.argument import ArgumentCollection

from ._version import __version__, installed_versions
from .commands.shared import output, ranks
from .commands.shared.output import BROKEN_PIPE, INTERRUPTED, USAGE
from .errors import EntropixError, SettingsError, first_line

COMMANDS = {
    "generate": ("generate:generate", "answer one prompt, or a file of them"),
    "chat": ("chat:chat", "converse with a model, and watch it"),
    "read": ("read:read", "measure a text that is given, without generating"),
    "view": ("view:view", "look at a recorded trace, here or as a page for a browser"),
    "serve": ("serve:serve", "answer the requests of OpenAI's clients"),
    "extract": ("extract:extract", "fill the fields of a JSON schema from documents"),
    "eval": ("evaluate:evaluate", "answer questions with known answers, and grade the answers"),
    "calibrate": ("calibrate:calibrate", "solve the thresholds for a model; show a profile"),
    "bench": ("bench:bench", "measure speed and memory against mlx-lm"),
    "models": ("models:models", "list or download models; tell what this machine is"),
    "convert": ("convert:convert", "write a model as a folder that mlx-lm loads, too"),
}
"""The commands: module and function in `commands`, and the purpose."""

SURROUNDINGS = {
    "not allowed to raise maximum limit": "mlx-lm needs 4,096 open files: ulimit -Hn 4096",
    "determine home directory": "you have no home folder: set HOME",
    "determine the home directory": "you have no home folder: set HOME",
}
"""What libraries say about where they run, and the sentence for it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code."""
    output.prepare()
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _run(words)
    except CycloptsError as error:
        name = f"{words[0]} " if words and words[0] in COMMANDS else ""
        message = " ".join(str(error).split())
        output.report_error(f"{message} (entropix {name}--help lists all options)")
        return USAGE
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


def _run(words: Sequence[str]) -> int:
    try:
        os.getcwd()
    except OSError as error:  # libraries that are imported later would end with a traceback
        raise EntropixError("the current folder was deleted: change to another one") from error
    command, bound, _ = build_app().parse_args(words, exit_on_error=False, print_error=False)
    if words:
        ranks.join(words[0], bound.arguments)
    if command.__module__.startswith("cyclopts"):  # help, or the version
        with output.writing_stdout():
            return int(command(*bound.args, **bound.kwargs) or 0)
    try:
        return int(command(*bound.args, **bound.kwargs) or 0)
    except (ValueError, RuntimeError) as error:
        for said, sentence in SURROUNDINGS.items():
            if said in str(error):
                raise SettingsError(sentence) from error
        raise


def build_app() -> App:
    app = App(
        name="entropix",
        help="Generate text with a local model that watches its own uncertainty.",
        version=show_version,
        version_flags="--version",
        version_format="plaintext",
        help_format="plaintext",
        config=_apply_configuration,
        default_parameter=Parameter(negative=(), show_default=_shown_default, allow_repeating=True),
        group_parameters=Group("Output, files and the rest", sort_key=9),
        suppress_keyboard_interrupt=False,
    )
    for name, (function, purpose) in COMMANDS.items():
        app.command(f"entropix_mlx.commands.{function}", name=name, help=purpose)
    app.register_install_completion_command()
    return app


def _apply_configuration(app: App, _: tuple[str, ...], arguments: ArgumentCollection) -> None:
    from .commands.shared.options import apply_configuration

    def all_options() -> set[str]:
        every = (build_app()[name].assemble_argument_collection() for name in COMMANDS)
        return {name for listed in every for argument in listed for name in argument.names}

    apply_configuration(app, arguments, all_options)


def _shown_default(value: Any) -> str | None:
    """Return what help says of a default: nothing where that is what one expects."""
    return None if value in (None, False, (), "") else str(value)


def show_version() -> str:
    """Return what is installed, and the device that MLX uses: looked up only when asked for."""
    try:
        import mlx.core as mx

        device: Any = mx.default_device().type.name
    except Exception as error:  # whatever keeps MLX from being imported
        device = f"unknown: MLX does not work ({first_line(error)})"
    versions = installed_versions() | {"entropix_mlx": __version__, "device": device}
    return "\n".join(f"{name} {version}" for name, version in versions.items())
