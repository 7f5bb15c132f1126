"""`entropix calibrate`: solve the thresholds for one model, and write them as a profile.

With ``--abstain`` it is the threshold below which an answer is called unsure.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ..profiles.selection import profile_for, user_folder
from ..profiles.writing import prepare, write_profile
from . import abstention
from .shared import loading, options, output

if TYPE_CHECKING:  # MLX is imported where a model is needed
    from ..lab.calibration.ablation import Gain
    from ..lab.calibration.intervention_sites import Worth
    from ..lab.calibration.thinking_text import Choice

FINDINGS = ".partial.jsonl"
"""What stands in place of the profile's suffix in the name of the file of findings."""
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
        type=int,
        default=0,
        help="the same seed gives the same profile (default: 0)",
    )
    add(
        "--output",
        "-o",
        metavar="FILE",
        help="where to write the profile (default: where --profile auto finds it)",
    )
    add(
        "--resume",
        action="store_true",
        help="go on with a calibration that was stopped, from the file of findings beside OUTPUT",
    )
    abstention.add_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Calibrate the thresholds of the strategies, or the one below which an answer is unsure."""
    name = PRECISION.sub("", options.model_options(arguments).name)
    path = Path(arguments.output or user_folder() / f"{name.lower()}.toml")
    prepare(path)
    if abstention.asked_for(arguments):
        return abstention.run(arguments, name, path)
    return _solve(arguments, name, path)


def _solve(arguments: argparse.Namespace, name: str, path: Path) -> int:
    """Calibrate, write the profile, and show the shares and AUROCs on the held-out prompts."""
    model, tokenizer = loading.load_model(options.model_options(arguments))
    from ..lab.ask_model import Progress
    from ..lab.calibration.calibrate import calibrate
    from ..lab.calibration.prompt_sets import read_prompts

    findings = path.with_suffix(FINDINGS)
    if arguments.resume and not findings.exists():
        output.report(f"there is nothing to go on with in {findings}: beginning anew")
    progress = Progress(findings, arguments.resume, _show_progress)

    result = calibrate(
        model,
        tokenizer,
        name,
        prompts=read_prompts(arguments.prompts) if arguments.prompts else None,
        tokens=arguments.tokens,
        seed=arguments.seed,
        progress=progress,
    )
    # Which answers are called unsure is another question: what was set for that stays.
    unsure = asdict(profile_for(model.config).abstain)
    profile = result.profile.replace({"abstain": unsure})
    write_profile(profile, path, datetime.date.today().isoformat())
    progress.journal.close()
    output.report(f"{'strategy':14} share of tokens on held-out prompts")
    for strategy, share in result.rates.items():
        output.report(f"{strategy:14} {share:6.1%}")
    output.report(f"\n{'measurement':22} AUROC for 'a draw at temperature 1 is not the top token'")
    for measurement, value in result.auroc.items():
        output.report(f"{measurement:22} {value:.3f}")
    if result.choice is not None:
        _tell_thoughts(result.choice)
    _tell_worths(result.worths)
    _tell_gains(result.gains)
    output.write(f"{path}\n")
    return 0


def _tell_thoughts(choice: Choice) -> None:
    """Say what the thinking texts did, the best first, and which one is kept."""
    output.report(
        f"\n{'thinking text':36} kept dropped  effect a token, nats (95 %)   log p   entropy"
    )
    for one in [*choice.tried, choice.kept]:
        told = one.to_dict()
        name = "chosen: " * (one is choice.kept) + json.dumps(one.text, ensure_ascii=False)
        counts = f"{name:36} {told['n']:4} {told['dropped']:7}"
        if not told["n"]:
            output.report(counts)
            continue
        effect, low, high = told["total"]
        figures = f"{effect:+.3f} ({low:+.3f} to {high:+.3f})"
        rest = f"{told['logprob'][0]:+.3f}  {told['entropy'][0]:+.3f}"
        output.report(f"{counts}  {figures:28} {rest}")
    if choice.harms:
        output.report("even the best one does harm: max_insertions = 0 (--think inserts it still)")


def _tell_worths(found: Mapping[str, Worth]) -> None:
    """Say which places are worth an intervention, and what those gain that are not."""
    output.report(
        "\nintervention  places     n  gain a place less its price (95 %), nats   forward tokens"
    )
    for name, one in found.items():
        told = one.record()
        for part in ("kept", "given_up"):
            row = told[part]
            if not row["n"]:
                continue
            mean, low, high = row["net"]
            figures = f"{mean:+.2f} ({low:+.2f} to {high:+.2f})"
            named = f"{name:13} {part.replace('_', ' '):8} {row['n']:3}"
            output.report(f"{named}  {figures:39} {row['cost']:.1f}")
        if not one.kept:
            output.report(f"{name:13} is worth its price nowhere: left out")


def _tell_gains(found: Sequence[Gain]) -> None:
    """Say what each intervention, and all together, gain and cost on the held-out prompts."""
    output.report(
        "\nintervention  texts    n  gain of log p (95 %), nats    repeated, points (95 %)"
        "    forward tokens a token"
    )
    for gain in found:
        told = gain.to_dict()
        mean, low, high = told["logprob"]
        figures = f"{mean:+.3f} ({low:+.3f} to {high:+.3f})"
        more, least, most = (100 * value for value in told["repetition"])
        repeated = f"{more:+.1f} ({least:+.1f} to {most:+.1f})"
        name = f"{gain.intervention:13} {gain.kind:6} {told['n']:3}"
        harm = "  harmful" * (gain.harms and gain.overall)
        output.report(f"{name}  {figures:28}  {repeated:24}  {gain.cost:+.2f}{harm}")


def _show_progress(done: int, total: int) -> None:
    if not sys.stderr.isatty():
        return
    filled = round(30 * done / total)
    end = "\n" if done == total else ""
    bar = "█" * filled + "░" * (30 - filled)
    output.report(f"\rcalibrating {bar} {done}/{total}", end=end)
