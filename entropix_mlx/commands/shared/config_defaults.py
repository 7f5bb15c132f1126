"""The options of a configuration file become the defaults of a subcommand's options."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any

from ...configuration import OPTIONS, Configuration
from ...errors import EntropixError
from ...profiles.fields import nearest
from ...settings import Settings

NEVER = ("config", "help")
"""Options that a file cannot set."""
_SETTINGS = {field.name for field in fields(Settings)}
_CHECKED_ALONE = ("sampler", "profile", "max_tokens", "seed", "stop", "loops", "attention_layers")
"""Fields of `Settings` that can be checked while all others have their defaults."""


def set_defaults(
    parser: argparse.ArgumentParser,
    configuration: Configuration,
    others: Callable[[], Iterable[argparse.ArgumentParser]],
) -> None:
    """Make the options of a file the defaults of a subcommand; those of `others` are ignored.

    Raises:
        ConfigurationError: no subcommand has such an option, or its value is impossible.
    """
    actions = _actions(parser)
    for key, value in configuration.options.items():
        name = key.replace("-", "_")
        if name in actions:
            try:
                default = _checked(parser, actions[name], value)
            except (argparse.ArgumentError, ValueError, EntropixError) as error:
                why = getattr(error, "message", str(error))
                raise configuration.fault(OPTIONS, key, why) from error
            parser.set_defaults(**{actions[name].dest: default})
        elif not any(name in _actions(other) for other in others()):
            near = nearest(name, actions)
            advice = f"did you mean {near}?" if near else "entropix chat --help lists them"
            raise configuration.fault(OPTIONS, key, f"there is no such option: {advice}")


def _actions(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """Return the options of a parser by their names, with ``_`` for each ``-``."""
    found: dict[str, argparse.Action] = {}
    for action in parser._actions:
        if action.option_strings and action.dest not in NEVER:
            names = [name.lstrip("-") for name in action.option_strings if name[:2] == "--"]
            found |= {name.replace("-", "_"): action for name in [*names, action.dest]}
    return found


def _checked(parser: argparse.ArgumentParser, action: argparse.Action, value: Any) -> Any:
    """Return a value of the file as the command line would give it."""
    if action.nargs == 0:  # a switch
        if not isinstance(value, bool):
            raise ValueError(f"it must be true or false, not {value!r}")
        return value
    if isinstance(action, argparse._AppendAction):
        if not isinstance(value, list):
            raise ValueError(f"it must be a list, as in [{value!r}]")
        parsed: Any = [_parsed(parser, action, element) for element in value]
        if action.nargs is not None:  # each is a list
            parsed = [one for several in parsed for one in several]
    else:
        parsed = _parsed(parser, action, value)
    if action.dest in _CHECKED_ALONE:
        Settings(**{action.dest: parsed}).check()
    elif action.dest in _SETTINGS:
        Settings(**{action.dest: parsed})
    return parsed


def _parsed(parser: argparse.ArgumentParser, action: argparse.Action, value: Any) -> Any:
    if isinstance(value, (dict, list)) or (action.type is None and not isinstance(value, str)):
        raise ValueError(f"it must be a text, not {value!r}")
    return parser._get_values(action, [str(value)])
