"""The options of a configuration file become the defaults of a command's options."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args, get_origin

from cyclopts import App
from cyclopts.argument import Argument, ArgumentCollection
from cyclopts.token import Token

from ...configuration import OPTIONS, Configuration
from ...errors import EntropixError
from ...profiles.fields import nearest
from ...settings import Settings, described
from .options import configuration

NEVER = ("--config", "--help", "--version")
"""Options that a file cannot set."""
ELSEWHERE = ("--server", "--demo")
OWN_MODEL = ("--model", "--ask", "--trace", "--notes")
"""What a server or a recording cannot do is refused where it is typed, and ignored in a file."""


def apply(app: App, arguments: ArgumentCollection, all_options: Callable[[], set[str]]) -> None:
    """Give the options of a command that were not typed what the file says.

    Args:
        app: the command.
        arguments: what it takes.
        all_options: returns the options of all commands: those of others are ignored.

    Raises:
        ConfigurationError: no command has such an option, or its value is impossible.
    """
    known = {name: argument for argument in arguments for name in argument.names}
    stated = known["--config"].tokens if "--config" in known else []
    if not stated and not getattr(app.default_command, "has_own_file", False):
        return
    file = configuration(Path(stated[0].value).expanduser() if stated else None)
    elsewhere = any(known[name].tokens for name in ELSEWHERE if name in known)
    for key, value in file.options.items():
        name = f"--{key.replace('_', '-')}"
        if name in known and name not in NEVER:
            tokens = _tokens(file, key, name, known[name], value)
            if not known[name].tokens and not (elsewhere and name in OWN_MODEL):
                for token in tokens:
                    known[name].append(token)
        elif name in NEVER or name not in all_options():
            near = nearest(name[2:], [other[2:] for other in known])
            advice = f"did you mean {near}?" if near else "entropix chat --help lists them"
            raise file.fault(OPTIONS, key, f"there is no such option: {advice}")


def check_settings(file: Configuration) -> None:
    """Check what a file says of fields of `Settings`.

    Raises:
        ConfigurationError: a value is impossible.
    """
    for key, value in file.options.items():
        try:
            _check_field(f"--{key.replace('_', '-')}", value)
        except (ValueError, EntropixError) as error:
            raise file.fault(OPTIONS, key, str(error)) from error


def _tokens(
    file: Configuration, key: str, name: str, argument: Argument, value: Any
) -> list[Token]:
    """Return a value of the file as the command line would state it."""
    try:
        _check(argument, name, value)
    except (ValueError, EntropixError) as error:
        raise file.fault(OPTIONS, key, str(error)) from error
    if isinstance(value, bool):
        is_negative = name in argument.negatives
        return [Token(keyword=name, source=str(file.path), implicit_value=value != is_negative)]
    listed = value if isinstance(value, list) else [value]
    return [
        Token(keyword=name, value=str(one), source=str(file.path), index=index)
        for index, one in enumerate(listed)
    ]


def _check(argument: Argument, name: str, value: Any) -> None:
    kinds = (argument.hint, *get_args(argument.hint))
    if bool in kinds:
        if not isinstance(value, bool):
            raise ValueError(f"it must be true or false, not {value!r}")
        return
    if tuple in (get_origin(kind) for kind in kinds):
        if not isinstance(value, list):
            raise ValueError(f"it must be a list, as in [{value!r}]")
    elif isinstance(value, (bool, dict, list)) or (
        str in kinds and not isinstance(value, (str, int))
    ):
        raise ValueError(f"it must be a text, not {value!r}")
    _check_field(name, value)


def _check_field(name: str, value: Any) -> None:
    for field, option in described().items():
        if name in (*option.names, f"--{field.replace('_', '-')}") and field != "logit_bias":
            settings = Settings(**{field: value})
            if field in ("sampler", "profile"):
                settings.check()
