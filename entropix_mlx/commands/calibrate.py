"""`entropix calibrate`: solve the thresholds for one model, and write them as a profile.

With ``--abstain`` it is the threshold below which an answer is called unsure, with ``--answers``
the one below which more answers are drawn.
"""

from __future__ import annotations

import argparse
import datetime
import math
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..answer.selection import SCORE
from ..constraints.constraint import JSON_SCHEMA, Constraint
from ..errors import PromptError
from ..extraction.documents import Document
from ..extraction.rows import write_thresholds
from ..extraction.task import Extraction, read_examples
from ..lab.calibration.fields import FieldThreshold, fit_fields, rows_needed
from ..lab.evaluation.arms import FORMS, PLAIN, Arm, answers, plan
from ..lab.evaluation.confidence import RISK, Abstention, fit_threshold
from ..lab.evaluation.gate import SHARE, GatedAnswer, GateEffect, fit_gate
from ..lab.evaluation.questions import FIT, REPORT, Selection
from ..lab.evaluation.records import PlannedAnswer, parse_record
from ..lab.evaluation.report import interval, percent
from ..lab.evaluation.tasks import problems_of
from ..models.config import fingerprint
from ..profiles.confidence import SCORES
from ..profiles.profile import profile_for, user_folder
from ..profiles.writing import prepare, write_profile
from ..settings import BATCH, Settings
from ..tables import Table
from .shared import loading, options, output
from .shared.answers import progress_bar
from .shared.extraction import MAX_TOKENS as EXTRACTED_TOKENS
from .shared.extraction import ExtractRequest, extract_rows

if TYPE_CHECKING:  # MLX is imported where a model is needed
    from ..lab.calibration.ablation import AblationEffect
    from ..lab.calibration.calibrate import Calibration
    from ..models.base import LanguageModel

FINDINGS = ".partial.jsonl"
"""The suffix of the file of findings, in place of the profile's."""
PRECISION = re.compile(r"(\.gguf|[-.](q\d\w*|f16|f32|bf16))+$", re.IGNORECASE)
"""The end of a model's name that states its precision, which the profile does not depend on."""
LIMIT = 1000
"""Questions of each half for ``--abstain``, unless the caller says otherwise."""
MAX_TOKENS = 32
_ONLY = {"abstain": ("risk", "level", "score"), "answers": ("share", "price")}


def add_parser(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)
    add = parser.add_argument
    options.add_model(parser)
    add(
        "--prompts",
        type=options.file,
        metavar="FILE",
        help="prompts, one a line (default: a varied set)",
    )
    add(
        "--tokens", type=options.positive, default=32, help="most tokens of an answer (default: 32)"
    )
    add("--seed", type=int, default=0, help="the same seed gives the same profile (default: 0)")
    place = "where to write the profile (default: where --profile auto finds it)"
    add("--output", "-o", type=options.file, metavar="FILE", help=place)
    resume = "resume a calibration that was stopped, from the file of findings beside OUTPUT"
    add("--resume", action="store_true", help=resume)
    _add_tasks(parser)
    _add_fields(parser)


def _add_tasks(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group(
        "unsure answers", "change one threshold of the profile that --profile auto finds: the"
        " score below which an answer is called unsure (--abstain), or more are drawn (--answers)"
    ).add_argument  # fmt: skip
    add("--abstain", metavar="TASK", help="set it on one half of this task of entropix eval")
    gate = "likewise: the score below which --answers auto draws more"
    add("--answers", metavar="TASK", help=gate)
    opened = f"--answers: the share of questions that get more answers (default {SHARE})"
    add("--share", type=float, help=opened)
    price = "--answers: the most forward tokens, as a multiple of those of single answers"
    add("--price", type=float, help=price)
    share = f"the largest share of wrong answers among the sure ones (default {RISK})"
    add("--risk", type=float, help=share)
    level = "meet the risk with this probability, such as 0.9 (default: on average)"
    add("--level", type=float, help=level)
    add(
        "--score", choices=tuple(SCORES), help="score to use (default: the one that separates best)"
    )
    limit = f"questions of each half (default {LIMIT}, or as many as there are)"
    add("--limit", type=options.questions, metavar="N", help=limit)
    add("--sampler", default="greedy", help="sampler of the answers (default: greedy)")
    add("--form", choices=FORMS, default=PLAIN, help="as for entropix eval (default: plain)")


def _add_fields(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group(
        "fields", "set the confidence below which entropix extract calls a field unsure"
    ).add_argument
    labelled = "rows with text and the right fields, in JSON Lines; needs --schema and --output"
    add("--fields", type=options.file, metavar="FILE", help=labelled)
    add("--schema", type=options.file, metavar="FILE", help="as for entropix extract")
    add("--examples", type=options.file, metavar="FILE", help="as for entropix extract")


def run(arguments: argparse.Namespace) -> int:
    """Calibrate the thresholds of the strategies, or those of unsure answers or fields."""
    if arguments.fields:
        return calibrate_fields(arguments)
    name = PRECISION.sub("", options.model_options(arguments).name)
    path = Path(arguments.output or user_folder() / f"{name.lower()}.toml")
    prepare(path)
    _check_tasks(arguments)
    if arguments.abstain:
        _solve_abstention(arguments, name, path)
    elif arguments.answers:
        _solve_gate(arguments, name, path)
    else:
        _solve_thresholds(arguments, name, path)
    output.write(f"{path}\n")
    return 0


def _check_tasks(arguments: argparse.Namespace) -> None:
    if arguments.abstain and arguments.answers:
        raise PromptError("--abstain and --answers set one threshold each: run one, then the other")
    if arguments.share is not None and arguments.price is not None:
        raise PromptError("--share and --price both set the gate: leave one out")
    for option, names in _ONLY.items():
        for name in names:
            if not getattr(arguments, option) and getattr(arguments, name) is not None:
                raise PromptError(f"--{name} is for --{option}: name a task with it")
    if arguments.limit is not None and not (arguments.abstain or arguments.answers):
        raise PromptError("--limit is for --abstain and --answers: name a task with one")
    for name in ("risk", "level", "share"):
        value = getattr(arguments, name)
        if value is not None and not 0 < value < 1:
            raise PromptError(f"--{name} is a share between 0 and 1, not {value:g}")
    if arguments.price is not None and not arguments.price > 1:
        raise PromptError(f"--price is a number above 1, not {arguments.price:g}")


def _solve_thresholds(arguments: argparse.Namespace, name: str, path: Path) -> None:
    model, tokenizer = loading.load_model(options.model_options(arguments))
    from ..lab.answering import Journal
    from ..lab.calibration.calibrate import calibrate, read_prompts

    findings = path.with_suffix(FINDINGS)
    if arguments.resume and not findings.exists():
        output.report(f"{findings} has nothing to resume: starting again")
    journal = Journal(findings, resume=arguments.resume, on_progress=_show_progress)
    result = calibrate(
        model,
        tokenizer,
        name,
        prompts=read_prompts(arguments.prompts) if arguments.prompts else None,
        tokens=arguments.tokens,
        seed=arguments.seed,
        journal=journal,
    )
    # What is calibrated separately stays.
    kept = profile_for(model.config)
    sections = {"abstain": asdict(kept.abstain), "answers": asdict(kept.answers)}
    profile = result.profile.replace(sections)
    write_profile(profile, path, datetime.date.today().isoformat())
    journal.remove()
    for table in _tables(result):
        output.report(table.to_text())
    if result.choice is not None and result.choice.harms:
        output.report("even the best one does harm: max_insertions = 0 (--think inserts it still)")
    for intervention, found in result.worths.items():
        if not found.beyond:
            output.report(f"{intervention} is worth its price nowhere: left out")


def _tables(result: Calibration) -> Iterator[Table]:
    rates = [(name, percent(share)) for name, share in result.rates.items()]
    yield Table(("strategy", "share"), rates, "Tokens on held-out prompts")
    title = "AUROC for 'a draw at temperature 1 is not the top token'"
    aurocs = [(name, f"{value:.3f}") for name, value in result.auroc.items()]
    yield Table(("measurement", "AUROC"), aurocs, title)
    yield _effect_table(result.effects)


def _effect_table(effects: Sequence[AblationEffect]) -> Table:
    rows = []
    for effect in effects:
        record = effect.to_dict()
        repeated = [100 * value for value in record["repetition"]]
        figures = (_figures(record["logprob"], 3), _figures(repeated, 1), f"{effect.cost:+.2f}")
        name = (effect.intervention, effect.kind, str(record["n"]))
        rows.append((*name, *figures, effect.verdict))
    header = ("intervention", "texts", "n", "log p, nats (95 %)", "repeated, points (95 %)",
              "forward tokens a token", "")  # fmt: skip
    return Table(header, rows, "Answers with interventions, against answers without")


def _figures(found: Sequence[float], digits: int) -> str:
    mean, low, high = (f"{value:+.{digits}f}" for value in found)
    return f"{mean} ({low} to {high})"


def _show_progress(done: int, total: int) -> None:
    if not sys.stderr.isatty():
        return
    filled = round(30 * done / total)
    end = "\n" if done == total else ""
    bar = "█" * filled + "░" * (30 - filled)
    output.report(f"\rcalibrating {bar} {done}/{total}", end=end)


def _solve_abstention(arguments: argparse.Namespace, name: str, path: Path) -> None:
    """Set the threshold on one half of a task, and report what it does on both."""
    settings = Settings(sampler=arguments.sampler, max_tokens=MAX_TOKENS)
    model, lines = _answered_halves(arguments, arguments.abstain, settings, name)
    answered = {half: [parse_record(line) for _, line in each] for half, each in lines.items()}
    risk = RISK if arguments.risk is None else arguments.risk
    abstain = fit_threshold(answered[FIT], risk, arguments.level, arguments.score)
    _write_threshold(model, name, path, {"abstain": asdict(abstain)})
    output.report(
        f"an answer is called unsure where {abstain.score} is below {abstain.threshold:.4g}"
    )
    for half, records in answered.items():
        if records:
            found = Abstention.of(abstain, records)
            output.report(f"{arguments.abstain}, {half} half: {_line(found)}")


def _solve_gate(arguments: argparse.Namespace, name: str, path: Path) -> None:
    """Set the gate on one half of a task, and report what it does on both."""
    opened = {"answers": {"threshold": math.inf}}
    settings = Settings(
        sampler=arguments.sampler, max_tokens=MAX_TOKENS, answers="auto", changes=opened
    )
    model, lines = _answered_halves(arguments, arguments.answers, settings, name)
    answered = {
        half: [GatedAnswer.of(one.question, line) for one, line in each]
        for half, each in lines.items()
    }
    threshold = fit_gate(answered[FIT], arguments.share, arguments.price)
    effects = {half: GateEffect.of(threshold, each) for half, each in answered.items() if each}
    figures = {half: effect.to_dict() for half, effect in effects.items()}
    record = {"answers": {"task": arguments.answers, **figures}}
    changes: dict[str, Any] = {"answers": {"threshold": threshold}, "calibration": record}
    _write_threshold(model, name, path, changes)
    output.report(f"--answers auto draws more where {SCORE} is below {threshold:.4g}")
    for half, effect in effects.items():
        points = _figures((effect.points, *effect.interval), 1)
        output.report(
            f"{arguments.answers}, {half} half: more answers to {percent(effect.share)} of"
            f" {effect.n} questions give {points} points at {effect.price:.2f} times the tokens"
        )


def _answered_halves(
    arguments: argparse.Namespace, task: str, settings: Settings, name: str
) -> tuple[LanguageModel, dict[str, list[tuple[PlannedAnswer, dict[str, Any]]]]]:
    """Answer both halves of a task, and return the model and the lines of each half."""
    selection = Selection(limit=arguments.limit or LIMIT, seed=arguments.seed)
    arm = Arm(arguments.sampler, settings)
    planned = [
        one
        for split in (FIT, REPORT)
        for one in plan(
            problems_of(task, selection, split), [arm], name, arguments.form, arguments.seed
        )
    ]
    model, tokenizer = loading.load_model(options.model_options(arguments))
    lines: dict[str, list[tuple[PlannedAnswer, dict[str, Any]]]] = {FIT: [], REPORT: []}
    with progress_bar(len(planned)) as bar:
        for one, line in answers(model, tokenizer, planned, batch=BATCH, on_token=bar.token):
            if "error" not in line:
                lines[one.question.split].append((one, line))
            bar.answer()
    return model, lines


def _write_threshold(model: LanguageModel, name: str, path: Path, changes: dict[str, Any]) -> None:
    profile = profile_for(model.config).replace(changes)
    record = {"model": name, "fingerprint": fingerprint(model.config)} | profile.calibration
    profile = profile.replace({"name": name.lower(), "calibration": record})
    write_profile(profile, path, str(record.pop("date", datetime.date.today().isoformat())))


def _line(found: Abstention) -> str:
    if not found.given:
        return f"none of {found.n} answers is sure: coverage 0"
    return (
        f"{found.given} of {found.n} answers given, coverage {percent(found.coverage)}; of these"
        f" {found.wrong} wrong, risk {percent(found.observed_risk)} ({interval(found.interval)})"
    )


def calibrate_fields(arguments: argparse.Namespace) -> int:
    """Set the least confidence of each field on labelled rows, and report what it does."""
    if arguments.schema is None or arguments.output is None:
        raise PromptError("--fields needs --schema and --output: the schema, and where to write")
    risk = RISK if arguments.risk is None else arguments.risk
    labelled = read_examples(arguments.fields)
    if len(labelled) // 2 < rows_needed(risk):
        output.report(
            f"a risk of {risk:g} needs {2 * rows_needed(risk)} labelled rows at least, even if all"
            f" are right: {arguments.fields} has {len(labelled)}"
        )
    schema = options.read_schema(arguments.schema)
    shown = read_examples(arguments.examples) if arguments.examples else []
    request = ExtractRequest(
        model=options.model_options(arguments),
        settings=Settings(
            sampler="greedy",
            seed=arguments.seed,
            max_tokens=EXTRACTED_TOKENS,
            constraint=Constraint(JSON_SCHEMA, schema),
        ),
        extraction=Extraction(schema, tuple(shown)),
        documents=[
            Document(f"{arguments.fields}:{number}", example.text)
            for number, example in enumerate(labelled, 1)
        ],
        thresholds={},
        otherwise=0.0,
        output=arguments.output,
        resume=arguments.resume,
        batch=BATCH,
    )
    rows, code = extract_rows(request)
    if code == output.INTERRUPTED:
        return code
    found = fit_fields(rows, [example.fields for example in labelled], risk)
    write_thresholds(arguments.output, {one.name: one.threshold for one in found}, risk, len(rows))
    output.report(_field_table(found).to_text())
    for one in found:
        if math.isinf(one.threshold):
            output.report(
                f"{one.name}: no threshold keeps a risk of {risk:g}, so all is to be reviewed; the"
                f" least risk within reach is {one.least_risk:.3g}"
            )
    output.write(f"{arguments.output}\n")
    return code


def _field_table(found: Sequence[FieldThreshold]) -> Table:
    rows = [
        (
            one.name,
            percent(one.right / one.n),
            f"{one.auroc:.2f}",
            f"{one.threshold:.4g}",
            percent(one.taken / one.held_out),
            f"{one.wrong} of {one.taken}",
        )
        for one in found
        if one.held_out
    ]
    header = ("field", "right", "AUROC", "threshold", "taken without a look", "wrong among these")
    return Table(header, rows, "Fields; the last two columns on the rows that were held out")
