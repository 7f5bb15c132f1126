"""`entropix calibrate`: solve the thresholds for one model, and write them as a profile.

With ``--abstain`` it is the threshold below which an answer is called unsure.
"""

from __future__ import annotations

import argparse
import datetime
import re
import sys
from dataclasses import asdict
from pathlib import Path

from ..profiles.choice import profile_for, user_folder
from ..profiles.writing import prepare, write_profile
from . import abstaining, options, terminal, values

PRECISION = re.compile(r"(\.gguf|[-.](q\d\w*|f16|f32|bf16))+$", re.IGNORECASE)
"""The end of a model's name that states its precision, which the profile does not depend on."""


def add_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.set_defaults(run=run)
    add = parser.add_argument
    options.add_model(parser)
    add("--prompts", metavar="FILE", help="prompts, one a line (default: a varied set)")
    add("--tokens", type=values.positive, default=32, help="the most an answer (default: 32)")
    add(
        "--seed",
        type=values.whole,
        default=0,
        help="the same seed gives the same profile (default: 0)",
    )
    add(
        "--output",
        "-o",
        metavar="FILE",
        help="where to write the profile (default: where --profile auto finds it)",
    )
    abstaining.add_options(parser)
    parser.set_defaults(verbose=True)


def run(arguments: argparse.Namespace) -> int:
    """Calibrate the thresholds of the strategies, or the one below which an answer is unsure."""
    name = PRECISION.sub("", options.model_name(arguments))
    path = Path(arguments.output or user_folder() / f"{name.lower()}.toml")
    prepare(path)
    if abstaining.asked_for(arguments):
        return abstaining.run(arguments, name, path)
    return _solve(arguments, name, path)


def _solve(arguments: argparse.Namespace, name: str, path: Path) -> int:
    """Calibrate, write the profile, and show the shares and AUROCs on the held-out prompts."""
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
    # Which answers are called unsure is another question: what was set for that stays.
    unsure = asdict(profile_for(model.config).abstain)
    profile = result.profile.replace({"abstain": unsure})
    write_profile(profile, path, datetime.date.today().isoformat())
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
