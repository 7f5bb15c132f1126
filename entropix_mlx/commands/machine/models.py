"""`entropix models`: list the models on this machine, and whether each can run; download one."""

from __future__ import annotations

import argparse
import sys

from ..shared import loading, options, output


def add_parser(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)
    parser.add_argument(
        "folders",
        nargs="*",
        type=options.file,
        metavar="FOLDER",
        help="list models in these folders, too",
    )
    what = "download a model instead of listing: demo, or a hub id (owner/name)"
    parser.add_argument("--download", type=options.nonempty, metavar="NAME", help=what)


def run(arguments: argparse.Namespace) -> int:
    from ...checkpoints.inventory import inventory

    if arguments.download is not None:
        output.write(f"{loading.download_model(arguments.download)}\n")
        return 0
    _print(f"{'size, GB':>8}  {'precision':10}{'context':>8}  {'runs':6}model")
    for entry in inventory(arguments.folders):
        runs = "no" if entry.fault else "yes"
        _print(
            f"{entry.nbytes / 1e9:8.2f}  {entry.precision or '?':10}{entry.context or '?':>8}"
            f"  {runs:6}{entry.name}"
        )
        indent = " " * 36
        if entry.name != str(entry.path):
            _print(f"{indent}in {entry.path}")
        if entry.fault:
            _print(f"{indent}{entry.fault}")
    return 0


def _print(line: str) -> None:
    output.write(output.shown(line, sys.stdout) + "\n")  # a folder may have any name
