"""`entropix doctor`: what this machine is, what is slow on it, what does not work, what to do."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...configuration import Configuration
from ..shared import config_defaults, output
from ..shared.output import BUG

if TYPE_CHECKING:
    from ...diagnosis.facts import Facts
    from ...diagnosis.findings import Finding

DESCRIPTION = "Exits with 1 if something keeps the program from working, else with 0."
MARKS = {"good": "✓", "advice": "!", "fault": "✗"}
WIDTH = 18


def add_parser(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)
    parser.description = DESCRIPTION
    parser.add_argument("--json", action="store_true", help="print all facts, for a bug report")


def run(arguments: argparse.Namespace) -> int:
    from ...diagnosis.facts import collect
    from ...diagnosis.findings import Level, findings

    facts = collect(lambda: _checked_configuration(arguments.subcommands))
    found = findings(facts)
    if arguments.json:
        output.write_json(asdict(facts) | {"findings": [asdict(one) for one in found]}, indent=2)
    else:
        lines = [*_described(facts), "", *map(_written, found)]
        output.write_text("\n".join(lines) + "\n")
    return BUG if any(one.level is Level.FAULT for one in found) else 0


def _checked_configuration(subcommands: Mapping[str, Any]) -> Path:
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
    return configuration.path


def _described(facts: Facts) -> Iterator[str]:
    machine, terminal, device = facts.machine, facts.terminal, facts.device
    yield _line("machine", f"{machine.chip} ({machine.architecture}), {machine.cores} cores")
    yield _line("memory", f"{machine.memory / 1e9:.1f} GB")
    yield _line("system", machine.system)
    yield _line("Python", facts.python)
    yield _line("versions", ", ".join(f"{name} {of}" for name, of in facts.versions.items()))
    if device:
        yield _line("device", f"{device.kind}, {device.name}; BLAS: {device.blas}")
        speeds = f"float32 {device.float32:.1f}, bfloat16 {device.half:.1f} GFLOP/s"
        yield _line("speed", f"{speeds} (products of matrices)")
    size = f"{terminal.columns} × {terminal.lines}" if terminal.columns else "no size"
    shown = f"{terminal.kind or 'none'}, {size}, {terminal.encoding}, {terminal.colours} colours"
    yield _line("terminal", shown)
    for folder in facts.folders:
        free = "?" if folder.free is None else f"{folder.free / 1e9:.1f}"
        yield _line(folder.holds, f"{folder.path} ({free} GB free)")
    for model in facts.models:
        fault = f": {model.fault}" if model.fault else ""
        yield _line("model", f"{model.name}, {model.nbytes / 1e9:.2f} GB{fault}")
    yield _line("configuration", facts.configuration or "broken")
    for name, value in facts.environment.items():
        yield _line("variable", f"{name}={value}")


def _line(name: str, text: str) -> str:
    return f"{name:{WIDTH}} {output.shortened(text)}"


def _written(finding: Finding) -> str:
    advice = f"\n  → {finding.advice}" if finding.advice else ""
    mark = MARKS[finding.level]
    return f"{mark} {output.shortened(finding.text)}{advice}"
