"""The options of a configuration file become the defaults of a subcommand's options."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from ...configuration.reading import OPTIONS, Configuration
from ...errors import EntropixError
from ...old_names import SETTINGS
from ...settings import Settings
from . import arg_types

NEVER = ("config", "help")
"""Options that a file cannot set."""
_SETTINGS = {field.name for field in fields(Settings)}


def add_config(parser: argparse.ArgumentParser, by_itself: bool) -> None:
    """Add the option that names a configuration file.

    Args:
        parser: of a subcommand.
        by_itself: whether the user's own file is read without it.
    """
    told = "instead of your own" if by_itself else "none is read otherwise"
    parser.add_argument(
        "--config",
        type=arg_types.file,
        metavar="FILE",
        help=f"take defaults of options from this file ({told})",
    )
    parser.set_defaults(configured_by_itself=by_itself)


def configuration_of(arguments: argparse.Namespace) -> Configuration | None:
    """Return what the file says that holds for a command line; None if there is none.

    Raises:
        ConfigurationError: it cannot be read, or a value is impossible.
    """
    if arguments.config is not None:
        return Configuration.load(arguments.config)
    return Configuration.load_default() if arguments.configured_by_itself else None


def set_defaults(
    parser: argparse.ArgumentParser,
    configuration: Configuration,
    all_parsers: Iterable[argparse.ArgumentParser],
) -> None:
    """Make the options of a file the defaults of a subcommand.

    Args:
        parser: of the subcommand.
        configuration: its options that only other subcommands have are passed over.
        all_parsers: those of all subcommands.

    Raises:
        ConfigurationError: no subcommand has such an option, or its value is impossible.
    """
    known = {name for one in all_parsers for name in _actions(one)}
    actions = _actions(parser)
    for key, value in configuration.options.items():
        name = key.replace("-", "_")
        name = SETTINGS.get(name, name)
        if name not in known:
            told = "there is no such option: entropix chat --help lists them"
            raise configuration.fault(OPTIONS, key, told)
        if name in actions:
            try:
                checked = _checked(actions[name], value)
                _check_settings(actions[name].dest, checked)
            except (argparse.ArgumentTypeError, ValueError, EntropixError) as error:
                raise configuration.fault(OPTIONS, key, str(error)) from error
            parser.set_defaults(**{actions[name].dest: checked})


def _actions(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """Return the options of a parser by their names, with ``_`` for each ``-``."""
    found: dict[str, argparse.Action] = {}
    for action in parser._actions:
        if action.option_strings and action.dest not in NEVER:
            names = [name.lstrip("-") for name in action.option_strings if name[:2] == "--"]
            found |= {name.replace("-", "_"): action for name in [*names, action.dest]}
    return found


def _checked(action: argparse.Action, value: Any) -> Any:
    if action.nargs == 0:  # a switch
        if not isinstance(value, bool):
            raise ValueError(f"it must be true or false, not {value!r}")
        return value
    if isinstance(action, argparse._AppendAction):
        if not isinstance(value, list):
            raise ValueError(f"it must be a list, as in [{value!r}]")
        return [_one(action, element) for element in value]
    return _one(action, value)


def _one(action: argparse.Action, value: Any) -> Any:
    if isinstance(value, (dict, list)) or (action.type is None and not isinstance(value, str)):
        raise ValueError(f"it must be a text, not {value!r}")
    try:
        result = action.type(str(value)) if callable(action.type) else value
    except ValueError:
        raise ValueError(f"it must be a number, not {value!r}") from None
    if action.choices is not None and result not in action.choices:
        raise ValueError(f"it must be one of {', '.join(map(str, action.choices))}")
    return result


def _check_settings(name: str, value: Any) -> None:
    """Raise what is wrong with a value of `Settings` by itself."""
    if name in ("sampler", "profile", "max_tokens", "seed", "stop", "attention_layers"):
        Settings(**{name: value}).check()
    elif name in _SETTINGS:
        Settings(**{name: value})
