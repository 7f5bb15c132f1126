"""`entropix calibrate --abstain`: below which score an answer is called unsure."""

from __future__ import annotations

import argparse
import datetime
from dataclasses import asdict
from pathlib import Path

from ..errors import PromptError
from ..lab.evaluation.abstention import Given, best_coverage, fit_threshold, given_with
from ..lab.evaluation.arms import FORMS, PLAIN, Arm
from ..lab.evaluation.questions import FIT, REPORT, Wanted
from ..lab.evaluation.records import Record, parse_record
from ..lab.evaluation.run import Design, answers, plan
from ..lab.evaluation.tasks import questions_of
from ..models.config import fingerprint
from ..profiles.confidence import SCORES
from ..profiles.sections import Abstain
from ..profiles.selection import profile_for
from ..profiles.writing import write_profile
from ..settings import BATCH, Settings
from .shared import loading, options, output
from .shared.answers import progress_bar

LIMIT = 1000
"""Questions of each half, unless the caller says otherwise."""
MAX_TOKENS = 32
_ABSTAIN_ONLY = ("risk", "level", "score", "limit", "also")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options about unsure answers."""
    add = parser.add_argument_group(
        "unsure answers", "set the threshold below which an answer is called unsure, and nothing"
        " else; the profile is otherwise the one that --profile auto finds"
    ).add_argument  # fmt: skip
    add("--abstain", metavar="TASK", help="a task of entropix eval, one half of which is answered")
    add(
        "--risk",
        type=float,
        help="the share of wrong answers among the others (default 0.2)",
    )
    add(
        "--level",
        type=float,
        help="keep to the risk with this probability, such as 0.9 (default: on average)",
    )
    add("--score", choices=tuple(SCORES), help="default: the one that separates best")
    add(
        "--limit",
        type=options.positive,
        metavar="N",
        help=f"questions of each half (default {LIMIT}, or as many as there are)",
    )
    add("--also", metavar="TASK", help="show risk and coverage with another task, too")
    add("--sampler", default="greedy", help="that answers (default: greedy)")
    add("--form", choices=FORMS, default=PLAIN, help="as for entropix eval (default: plain)")


def asked_for(arguments: argparse.Namespace) -> bool:
    """Tell whether a threshold for unsure answers is to be set.

    Raises:
        PromptError: an option is given that has no meaning, or is out of its range.
    """
    for name in _ABSTAIN_ONLY:
        if not arguments.abstain and getattr(arguments, name) is not None:
            raise PromptError(f"--{name} is for --abstain: name a task with it")
    for name in ("risk", "level"):
        value = getattr(arguments, name)
        if value is not None and not 0 < value < 1:
            raise PromptError(f"--{name} is a share between 0 and 1, not {value:g}")
    return bool(arguments.abstain)


def run(arguments: argparse.Namespace, name: str, path: Path) -> int:
    """Set the threshold on one half of a task, write it, and show what it does on the other."""
    risk = 0.2 if arguments.risk is None else arguments.risk
    checked = [(arguments.abstain, FIT), (arguments.abstain, REPORT)]
    checked += [(arguments.also, REPORT)] if arguments.also else []
    wanted = Wanted(limit=arguments.limit or LIMIT, seed=arguments.seed)
    halves = [questions_of(task, wanted, split) for task, split in checked]
    model, tokenizer = loading.load_model(options.model_options(arguments))
    settings = Settings(sampler=arguments.sampler, max_tokens=MAX_TOKENS)
    design = Design(name, arguments.form, arguments.seed)
    planned = [plan(half, [Arm(arguments.sampler, settings)], design) for half in halves]
    answered: list[list[Record]] = []
    with progress_bar(sum(map(len, planned))) as bar:
        for tasks in planned:
            records = []
            for _, line in answers(model, tokenizer, tasks, batch=BATCH, on_token=bar.token):
                if "error" not in line:
                    records.append(parse_record(line))
                bar.answer()
            answered.append(records)
    abstain = fit_threshold(answered[0], risk, arguments.level, arguments.score)
    profile = profile_for(model.config).replace({"abstain": asdict(abstain)})
    record = {"model": name, "fingerprint": fingerprint(model.config)} | profile.calibration
    profile = profile.replace({"name": name.lower(), "calibration": record})
    write_profile(profile, path, str(record.pop("date", datetime.date.today().isoformat())))
    _show(arguments, abstain, answered)
    output.write(f"{path}\n")
    return 0


def _show(arguments: argparse.Namespace, abstain: Abstain, answered: list[list[Record]]) -> None:
    output.report(
        f"an answer is called unsure where {abstain.score} is below {abstain.threshold:.4g}"
    )
    fit, report, *other = answered
    told = [(f"{arguments.abstain}, the half it was set on", fit)]
    told += [(f"{arguments.abstain}, the other half", report)]
    told += [(f"{arguments.also}: other questions, no guarantee", other[0])] if other else []
    for what, records in told:
        output.report(f"{what}: {_line(given_with(abstain, records))}")
    score, coverage = best_coverage(report, abstain.risk)
    output.report(
        f"in hindsight, the best threshold of any score on the other half: {score}, coverage"
        f" {coverage:.1%}"
    )


def _line(given: Given) -> str:
    if not given.given:
        return f"none of {given.n} answers is sure: coverage 0"
    low, high = given.interval
    return (
        f"{given.given} of {given.n} answers given, coverage {given.coverage:.1%}; of these"
        f" {given.wrong} wrong, risk {given.risk:.1%} ({100 * low:.1f} to {100 * high:.1f})"
    )
