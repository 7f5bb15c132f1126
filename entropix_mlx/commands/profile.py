"""`entropix profile`: show, compare and check profiles."""

from __future__ import annotations

import argparse
import sys

from ..profiles.profile import Profile, builtin_names, differences, read_source
from ..profiles.writing import sampler_comments, toml_value
from .shared import output


def add_parser(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    name = f"{', '.join(builtin_names())}, or a TOML file"
    show = actions.add_parser("show", help="print a profile, with its comments")
    show.add_argument("profile", metavar="NAME", help=name)
    show.set_defaults(run=_show)
    diff = actions.add_parser("diff", help="list the fields in which two profiles differ")
    diff.add_argument("first", metavar="A", help=name)
    diff.add_argument("second", metavar="B", help=name)
    diff.set_defaults(run=_diff)
    check = actions.add_parser("check", help="check that a profile can be used")
    check.add_argument("profile", metavar="FILE", help=name)
    check.set_defaults(run=_check)


def _show(arguments: argparse.Namespace) -> int:
    _, text = read_source(arguments.profile)
    output.write(output.shown(text, sys.stdout))
    output.write("\n" + sampler_comments(Profile.load(arguments.profile)))
    return 0


def _diff(arguments: argparse.Namespace) -> int:
    found = differences(Profile.load(arguments.first), Profile.load(arguments.second))
    for name, (one, other) in found.items():
        output.write(f"{name}: {toml_value(one)} → {toml_value(other)}\n")
    if not found:
        output.report("the two profiles decide alike")
    return 0


def _check(arguments: argparse.Namespace) -> int:
    Profile.load(arguments.profile)
    output.write(f"{arguments.profile}: ok\n")
    return 0
