"""`entropix profile`: read, compare and check profiles."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from ..palette import to_json
from ..profiles.profile import Profile, builtin_names, read_source
from ..profiles.profile_diff import differences
from . import terminal


def add_parser(parser: argparse.ArgumentParser) -> None:
    """Add the three things that can be done."""
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    name = f"{', '.join(builtin_names())}, or a TOML file"
    show = actions.add_parser("show", help="print a profile, with its comments")
    show.add_argument("profile", metavar="NAME", help=name)
    show.set_defaults(run=_show)
    diff = actions.add_parser("diff", help="list the fields in which two profiles differ")
    diff.add_argument("first", metavar="A", help=name)
    diff.add_argument("second", metavar="B", help=name)
    diff.set_defaults(run=_diff)
    check = actions.add_parser("check", help="tell whether a profile can be used")
    check.add_argument("profile", metavar="FILE", help=name)
    check.set_defaults(run=_check)


def _show(arguments: argparse.Namespace) -> int:
    _, text = read_source(arguments.profile)
    terminal.write(terminal.shown(text, sys.stdout))
    return 0


def _diff(arguments: argparse.Namespace) -> int:
    found = differences(Profile.load(arguments.first), Profile.load(arguments.second))
    for name, (one, other) in found.items():
        terminal.write(f"{name}: {_as_toml(one)} → {_as_toml(other)}\n")
    if not found:
        terminal.tell("the two profiles decide alike")
    return 0


def _as_toml(value: Any) -> str:
    # JSON writes texts, flags and lists as TOML does, but knows no infinite number.
    return str(value) if isinstance(value, float) else to_json(value)


def _check(arguments: argparse.Namespace) -> int:
    Profile.load(arguments.profile)
    terminal.write(f"{arguments.profile}: ok\n")
    return 0
