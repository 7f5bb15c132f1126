"""`entropix calibrate`: solve the thresholds for one model, and write them as a profile."""

from __future__ import annotations

import argparse
import datetime
import re
import sys
from pathlib import Path

from ..profiles.choice import user_folder
from ..profiles.writing import prepare, write_profile
from . import options, terminal

PRECISION = re.compile(r"(\.gguf|[-.](q\d\w*|f16|f32|bf16))+$", re.IGNORECASE)
"""The end of a model's name that states its precision, which the profile does not depend on."""


def add_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.set_defaults(run=run)
    add = parser.add_argument
    options.add_model(parser)
    add("--prompts", metavar="FILE", help="prompts, one a line (default: a varied set)")
    add("--tokens", type=options.positive, default=32, help="the most an answer (default: 32)")
    add(
        "--seed",
        type=options.whole,
        default=0,
        help="the same seed gives the same profile (default: 0)",
    )
    add(
        "--output",
        "-o",
        metavar="FILE",
        help="where to write the profile (default: where --profile auto finds it)",
    )
    parser.set_defaults(verbose=True)


def run(arguments: argparse.Namespace) -> int:
    """Calibrate, write the profile, and show the shares and AUROCs on the held-out prompts."""
    name = PRECISION.sub("", options.model_name(arguments))
    path = Path(arguments.output or user_folder() / f"{name.lower()}.toml")
    prepare(path)
    model, tokenizer = options.load_model(arguments)
    from ..lab.calibrate import calibrate, read_prompts

    result = calibrate(
        model,
        tokenizer,
        name,
        prompts=read_prompts(arguments.prompts) if arguments.prompts else None,
        tokens=arguments.tokens,
        seed=arguments.seed,
        on_progress=_show_progress,
    )
    write_profile(result.profile, path, datetime.date.today().isoformat())
    terminal.tell(f"{'strategy':14} share of tokens on held-out prompts")
    for strategy, share in result.rates.items():
        terminal.tell(f"{strategy:14} {share:6.1%}")
    terminal.tell(f"\n{'measurement':22} AUROC for 'a draw at temperature 1 is not the top token'")
    for measurement, value in result.auroc.items():
        terminal.tell(f"{measurement:22} {value:.3f}")
    terminal.write(f"{path}\n")
    return 0


def _show_progress(done: int, total: int) -> None:
    if not sys.stderr.isatty():
        return
    filled = round(30 * done / total)
    end = "\n" if done == total else ""
    bar = "█" * filled + "░" * (30 - filled)
    terminal.tell(f"\rcalibrating {bar} {done}/{total} answers", end=end)
