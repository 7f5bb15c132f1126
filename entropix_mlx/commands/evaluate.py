"""`entropix eval`: questions with known answers, answered in several ways."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from ..api.answers_file import AnswersFile
from ..errors import OutputError, PromptError
from ..files import check_target, keep_source, write_whole, writing
from ..lab.evaluation import noted as noted_task
from ..lab.evaluation.arms import FORMS, OWN_PROFILE, PLAIN, Arm, Axes, arms_of
from ..lab.evaluation.page import render
from ..lab.evaluation.questions import EXAMPLES, SPLITS, Question, Wanted
from ..lab.evaluation.records import Planned, Record, parse_record, read_records
from ..lab.evaluation.report import Report
from ..lab.evaluation.run import Design, answers, plan
from ..lab.evaluation.tasks import questions_of
from ..lab.evaluation.voting import check_comparisons, joined, made_of_several
from ..profiles.fields import overlaid
from ..profiles.profile import Profile
from ..profiles.selection import AUTO
from ..settings import BATCH
from ..traces.trace import read_trace
from .ranks import coordinator
from .shared import loading, options, output
from .shared.answers import progress_bar
from .shared.options import changes_of
from .shared.output import INTERRUPTED, USAGE

if TYPE_CHECKING:
    from ..notes.notes import Notes

MAX_TOKENS = 32
"""Of an answer: short ones are asked for, and a longer text is not graded any further."""
DEFAULT_ARMS = ("greedy", "entropix")
SHARES_BY = "smollm2-135m-instruct"
"""The profile whose thresholds tell strategies apart where none is named: the demo model's."""
BETWEEN = ";"
"""Stands between the changes that one --set makes together."""
MOST_FAILURES = 5
"""Failures that are told at the end; the answers' file has all of them."""


def add_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.set_defaults(run=run)
    options.add_model(parser)
    _add_questions(parser)
    _add_arms(parser)
    options.add_notes(parser)
    _add_comparisons(parser)
    _add_output(parser)
    options.add_verbose(parser)


def _add_questions(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--task",
        action="append",
        dest="tasks",
        metavar="TASK",
        help="arithmetic, facts, one kind of facts such as capitals, notes, open, svamp=FILE,"
        " gsm8k=FILE, or a .jsonl file of yours; may be repeated (default: arithmetic)",
    )
    add(
        "--limit",
        type=options.positive,
        metavar="N",
        help="questions of each task (default: 200 of arithmetic, all of the others)",
    )
    add("--rungs", metavar="NAMES", help="only these rungs of the tasks, with commas between them")
    add(
        "--split",
        choices=SPLITS,
        help="which half of the questions (default: report; all of a file)",
    )
    add(
        "--examples",
        type=options.count,
        default=EXAMPLES,
        metavar="K",
        help=f"worked examples, drawn anew for each question (default: {EXAMPLES})",
    )
    add(
        "--form",
        choices=FORMS,
        default=PLAIN,
        help="worked examples as a text to continue, or as turns of a chat (default: plain)",
    )


def _add_arms(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--sampler",
        action="append",
        dest="samplers",
        metavar="NAME",
        help=f"{options.samplers()}; with a profile of its own, as in entropix:reference; may be"
        f" repeated (default: {' and '.join(DEFAULT_ARMS)})",
    )
    add(
        "--seeds",
        type=options.positive,
        default=1,
        metavar="N",
        help="answers to each question in each of the ways that are compared (default: 1)",
    )
    add(
        "--seed",
        type=int,
        default=0,
        help="of questions, examples and draws (default 0)",
    )
    options.add_generation(parser, several=True)
    parser.set_defaults(max_tokens=MAX_TOKENS)


def _add_comparisons(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--vote",
        action="append",
        type=options.positive,
        default=[],
        metavar="N",
        help="also what most of the first N answers of each way say; needs --seeds",
    )
    add(
        "--best-of",
        action="append",
        type=options.positive,
        default=[],
        metavar="N",
        help="also the one with the highest mean log p among the first N answers of each way",
    )
    add(
        "--contrast",
        action="append",
        nargs=2,
        default=[],
        metavar=("ARM", "ARM"),
        help="compare these two of the ways, and no others; may be repeated (default: every two)",
    )


def _add_output(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    what = "keep every answer in a file, a line each (JSON Lines)"
    options.add_answers_file(parser, what, BATCH)
    options.add_mode(parser)
    add(
        "--read",
        action="append",
        type=options.file,
        metavar="FILE",
        help="sum up the answers of such a file, without a model; may be repeated",
    )
    add(
        "--confidence",
        action="store_true",
        help="how well scores of an answer's own tokens tell the right ones from the wrong ones",
    )
    add(
        "--human",
        type=options.file,
        metavar="TRACE",
        help="compare the surprise of open answers with that of a text that entropix read recorded",
    )
    add("--json", action="store_true", help="print one object")
    add("--markdown", action="store_true", help="print tables in Markdown")
    add("--page", type=options.file, metavar="FILE", help="write a page with plots for a browser")


def run(arguments: argparse.Namespace) -> int:
    """Answer all questions in all ways, and print what that shows."""
    _check(arguments)
    _check_page(arguments)
    human = _human(arguments)
    if arguments.read:
        found = [record for file in arguments.read for record in read_records(file)]
        return _report(arguments, found, human)
    questions = _questions(arguments)
    arms = _arms(arguments)
    made = made_of_several(arguments.vote, arguments.best_of)
    check_comparisons([arm.name for arm in arms], made, arguments.contrast, arguments.seeds)
    design = Design(
        options.model_options(arguments).name, arguments.form, arguments.seed, arguments.seeds
    )
    planned = plan(questions, arms, design)
    file, done = None, []
    if arguments.output:
        file = AnswersFile(arguments.output, planned, resume=arguments.resume)
        planned = [task for task in planned if task.key not in file.done]
        done = read_records(arguments.output) if file.done else []
        if arguments.verbose and file.done:
            output.report(f"{len(file.done)} answers are there, {len(planned)} to go")
    code = 0
    if planned:
        new, code = _answer(arguments, planned, file)
        done += new
    return code if code == INTERRUPTED else _report(arguments, done, human) or code


def _check(arguments: argparse.Namespace) -> None:
    options.check_answers_file(arguments)
    if arguments.json and arguments.markdown:
        raise PromptError("choose one of --json and --markdown")
    if arguments.read and (arguments.output or arguments.tasks):
        raise PromptError("--read sums up answers that are there: leave --task and --output out")


def _check_page(arguments: argparse.Namespace) -> None:
    """Check that the page can be written before answers are generated for it."""
    if arguments.page is None:
        return
    for source in (*(arguments.read or ()), arguments.output):
        if source is not None:
            keep_source(arguments.page, source)
    check_target(arguments.page)


def _human(arguments: argparse.Namespace) -> list[float]:
    """Read the trace of a human text before hours are spent on what is compared with it."""
    return [step.logprob for step in read_trace(arguments.human).steps] if arguments.human else []


def _questions(arguments: argparse.Namespace) -> list[Question]:
    """Return the questions of all tasks, one of each task in turn.

    So a run that is resumed with a higher limit asks the same questions first.
    """
    wanted = Wanted(
        limit=arguments.limit,
        seed=arguments.seed,
        rungs=tuple(arguments.rungs.split(",")) if arguments.rungs else (),
        examples=arguments.examples,
    )
    tasks = dict.fromkeys(arguments.tasks or ("arithmetic",))
    found = [questions_of(task, wanted, arguments.split) for task in tasks]
    turns = zip_longest(*found)
    every = [question for turn in turns for question in turn if question is not None]
    return list({question.id: question for question in every}.values())


def _arms(arguments: argparse.Namespace) -> list[Arm]:
    """Return every combination of samplers, profiles, changes and temperatures."""
    changes = [
        (assignments, _changes(assignments)) for assignments in dict.fromkeys(arguments.assignments)
    ]
    axes = Axes(
        samplers=tuple(dict.fromkeys(arguments.samplers or DEFAULT_ARMS)),
        profiles=tuple(dict.fromkeys(arguments.profile or (AUTO,))),
        changes=changes or (("", {}),),
        temperatures=tuple(dict.fromkeys(arguments.temperature or (None,))),
    )
    shared = vars(arguments) | {
        "sampler": axes.samplers[0].partition(OWN_PROFILE)[0],
        "profile": axes.profiles[0],
        "assignments": [],
        "temperature": None,
        "seed": None,
    }
    return arms_of(axes, options.to_settings(argparse.Namespace(**shared)))


def _changes(assignments: str) -> dict[str, Any]:
    """Return what one --set changes: several fields have a semicolon between them."""
    changes: dict[str, Any] = {}
    for assignment in assignments.split(BETWEEN):
        changes = overlaid(changes, changes_of(assignment.strip()))
    return changes


def _answer(
    arguments: argparse.Namespace, planned: list[Planned], file: AnswersFile | None
) -> tuple[list[Record], int]:
    """Generate answers, and keep each as it ends; return them and an exit code."""
    with _notes(arguments, planned) as notes:
        return _generate(arguments, planned, file, notes)


@contextmanager
def _notes(arguments: argparse.Namespace, planned: list[Planned]) -> Iterator[Notes | None]:
    """Open the folder that is named; without one, the task `notes` brings its own."""
    if arguments.notes or not any(task.question.task == noted_task.NAME for task in planned):
        yield loading.open_notes(arguments.notes)
    else:
        with noted_task.own_notes() as notes:
            yield notes


def _generate(
    arguments: argparse.Namespace,
    planned: list[Planned],
    file: AnswersFile | None,
    notes: Notes | None,
) -> tuple[list[Record], int]:
    model, tokenizer = loading.load_model(options.model_options(arguments))
    records: list[Record] = []
    failures: list[str] = []
    with file or nullcontext(), progress_bar(len(planned)) as bar:
        try:
            for task, line in answers(
                model,
                tokenizer,
                planned,
                batch=arguments.batch,
                on_token=bar.token,
                notes=notes,
                generate=partial(coordinator.generate_batch, arguments.leader),
            ):
                if file:
                    file.write(task, line)
                if "error" in line:
                    failures.append(f"{task.question.id}: {line['error']}")
                else:
                    records.append(parse_record(line))
                bar.answer()
        except KeyboardInterrupt:
            again = f"; add --resume to go on with {arguments.output}" if file else ""
            output.report(f"\nstopped: {len(records)} answers complete{again}")
            return records, INTERRUPTED
    if arguments.verbose:
        output.report(f"{len(records)} answers, {bar.totals}")
    for failure in failures[:MOST_FAILURES]:
        output.report_error(failure)
    return records, USAGE if failures else 0


def _report(arguments: argparse.Namespace, records: list[Record], human: list[float]) -> int:
    """Print what the answers amount to; `human` are log probabilities of a human text."""
    if not records:
        raise OutputError("there are no answers to sum up")
    made = made_of_several(arguments.vote, arguments.best_of)
    joint = [record for several in made for record in joined(records, *several)]
    named = (arguments.profile or [AUTO])[0]
    profile = Profile.load(SHARES_BY if named == AUTO else named) if arguments.confidence else None
    pairs = [(first, second) for first, second in arguments.contrast]
    report = Report.of([*records, *joint], profile, human, pairs)
    if arguments.json:
        output.write_json(report.to_dict(), indent=2)
    elif arguments.markdown:
        output.write("\n\n".join(table.to_markdown() for table in report.tables()) + "\n")
    else:
        output.write("\n".join(table.to_text() for table in report.tables()))
    if arguments.page:  # last, so that nothing is lost where it cannot be written
        with writing(arguments.page, OutputError):
            write_whole(arguments.page, render(report))
    return 0
