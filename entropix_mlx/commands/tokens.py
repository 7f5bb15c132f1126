"""`entropix tokens`: list tokens that a model has hardly seen; one can serve as a silent pause."""

from __future__ import annotations

import argparse
import math
from dataclasses import asdict
from typing import TYPE_CHECKING

from ..palette import to_json
from .shared import loading, options, output

if TYPE_CHECKING:
    from ..lab.undertrained import Candidate, Findings

TITLES = f"{'kind':8}  {'id':>6}  {'norm':>8}  distance  text\n"


def add_parser(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)
    add = parser.add_argument
    options.add_model(parser)
    add(
        "--undertrained",
        nargs="?",
        type=options.positive,
        const=20,
        default=0,
        metavar="N",
        help="also list the N tokens that look least trained (default: 20)",
    )
    add(
        "--unused",
        action="append",
        type=options.count,
        default=[],
        metavar="ID",
        help="a token known to be unused, to compare with (default: the reserved ones); may be"
        " repeated",
    )
    add("--json", action="store_true", help="print one JSON object")
    options.add_verbose(parser)


def run(arguments: argparse.Namespace) -> int:
    model, tokenizer = loading.load_model(options.model_options(arguments))
    from ..lab.undertrained import find

    findings = find(model, tokenizer, arguments.undertrained, arguments.unused)
    if arguments.json:
        output.write_json(asdict(findings), indent=2)
        return 0
    output.write(TITLES)
    for kind, found in (("reserved", findings.reserved), ("suspect", findings.suspects)):
        for candidate in found:
            output.write(_line(kind, candidate))
    _explain(findings)
    return 0


def _line(kind: str, candidate: Candidate) -> str:
    distance = "–" if candidate.distance is None else f"{candidate.distance:.4f}"
    text = to_json(candidate.text)
    return f"{kind:8}  {candidate.token:6}  {candidate.norm:8.4f}  {distance:>8}  {text}\n"


def _explain(findings: Findings) -> None:
    output.info("norm: of the embedding; distance: to the mean of the unused tokens")
    if findings.suspects:
        output.info(
            f"suspects have the smallest {findings.indicator}; that of all tokens is"
            f" {findings.mean:.4f} ± {findings.deviation:.4f}. This is a ranking, not a verdict"
        )
    if findings.reserved:
        best = min(findings.reserved, key=lambda c: math.inf if c.distance is None else c.distance)
        output.info(
            f"to pause with a reserved token: entropix generate --set think.text={best.token} …"
        )
