"""The options of a configuration file become the defaults of a command's options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import starmap
from pathlib import Path
from typing import Any

from cyclopts import App
from cyclopts.argument import Argument, ArgumentCollection
from cyclopts.config import Dict

from ...configuration import OPTIONS, Configuration
from ...errors import EntropixError
from ...profiles.fields import nearest
from ...settings import Settings, described
from .options import configuration

NEVER = ("config", "help", "version")
"""Options that a file cannot set."""
ELSEWHERE = ("--server", "--demo")
OWN_MODEL = ("model", "ask", "trace", "notes")
"""What a server or a recording cannot do is refused where it is typed, and ignored in a file."""


def apply(app: App, arguments: ArgumentCollection, all_options: Callable[[], set[str]]) -> None:
    """Give the options of a command that were not typed what the file says.

    Args:
        app: the command.
        arguments: what it takes.
        all_options: returns the options of all commands: those of others are ignored.

    Raises:
        ConfigurationError: no command has such an option, or its value is impossible.
        CycloptsError: its value has the wrong type.
    """
    known = {name: argument for argument in arguments for name in argument.names}
    typed = known["--config"].tokens if "--config" in known else []
    if not typed and not getattr(app.default_command, "has_own_file", False):
        return
    file = configuration(Path(typed[0].value).expanduser() if typed else None)
    _check_names(file, list(known), all_options)
    check_settings(file)
    elsewhere = any(known[name].tokens for name in ELSEWHERE if name in known)
    taken = {
        key: value
        for key, value in starmap(partial(_positive, known), file.options.items())
        if not (elsewhere and key in OWN_MODEL)
    }
    source = Dict(taken, source=str(file.path), allow_unknown=True, use_commands_as_keys=False)
    source(app, (), arguments)


def _positive(known: Mapping[str, Argument], key: str, value: Any) -> tuple[str, Any]:
    """Return an option and its value; for one such as ``no-think``, of which cyclopts would take
    true for ``think = true``, what it is the opposite of."""
    argument = known.get(f"--{key}")
    if argument is None or f"--{key}" not in argument.negatives:
        return key, value
    return argument.name.removeprefix("--"), not value


def check_settings(file: Configuration) -> None:
    """Check what a file says of fields of `Settings`.

    Raises:
        ConfigurationError: a value is impossible.
    """
    for name, option in described().items():
        names = option.names or (f"--{name.replace('_', '-')}",)
        for key in file.options.keys() & {long.removeprefix("--") for long in names}:
            try:
                Settings(**{name: file.options[key]}).check()
            except EntropixError as error:
                raise file.fault(OPTIONS, key, str(error)) from error


def _check_names(
    file: Configuration, known: list[str], all_options: Callable[[], set[str]]
) -> None:
    """Check that each option of a file is one of this command or of another."""
    for key in file.options:
        name = f"--{key.replace('_', '-')}"
        if key in NEVER or not (name in known or name in all_options()):
            near = nearest(key, [other.removeprefix("--") for other in known])
            advice = f"did you mean {near}?" if near else "entropix chat --help lists them"
            raise file.fault(OPTIONS, key, f"there is no such option: {advice}")
