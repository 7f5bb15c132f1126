"""`entropix doctor`: what this machine is, what is slow on it, what does not work, what to do."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ...configuration import Configuration
from ..shared import config_defaults, output
from ..shared.output import BUG

DESCRIPTION = "Exits with 1 if something keeps the program from working, else with 0."
MARKS = {"good": "✓", "advice": "!", "fault": "✗"}


def add_parser(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)
    parser.description = DESCRIPTION
    parser.add_argument("--json", action="store_true", help="print an object, for a bug report")


def run(arguments: argparse.Namespace) -> int:
    from ...diagnosis.checks import Level, diagnose

    checks = diagnose(lambda: _checked_configuration(arguments.subcommands))
    if arguments.json:
        output.write_json({"checks": [asdict(check) for check in checks]}, indent=2)
    else:
        for check in checks:
            advice = f"\n{'':16}→ {check.advice}" if check.advice else ""
            found = output.shortened(check.found)
            output.write_text(f"{MARKS[check.level]} {check.name:13} {found}{advice}\n")
    return BUG if any(check.level is Level.FAULT for check in checks) else 0


def _checked_configuration(subcommands: Mapping[str, Any]) -> str:
    """Return the path of the user's configuration file.

    Raises:
        ConfigurationError: something in it is wrong.
    """
    from entropix_mlx.tui.app import ChatApp

    configuration = Configuration.load_default()
    for name in ("chat", "view"):
        config_defaults.set_defaults(
            subcommands[name].filled(),
            configuration,
            lambda: (other.filled() for other in subcommands.values()),
        )
    ChatApp.check(configuration)
    return str(configuration.path)
