"""`entropix eval`: questions with known answers, answered by several arms; and whole studies."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import limits
from ..api.answers_file import AnswersFile, Task
from ..errors import OutputError, PromptError
from ..lab.evaluation.arms import (
    FORMS,
    PLAIN,
    Arm,
    answers,
    arms_of,
    named_arm,
    plan,
)
from ..lab.evaluation.questions import EXAMPLES, SPLITS, Problem, Selection
from ..lab.evaluation.records import AnswerRecord, PlannedAnswer, parse_record, read_records
from ..lab.evaluation.report import EvaluationReport
from ..lab.evaluation.results import check_comparisons, combinations_of, combine
from ..lab.evaluation.tasks import ARITHMETIC, NOTES, own_notes, problems_of
from ..profiles.fields import hint
from ..profiles.profile import AUTO
from ..records import parse_toml
from ..settings import BATCH, Settings
from .ranks import shares
from .shared import loading, options, output
from .shared.answers import write_answers
from .shared.output import INTERRUPTED

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ..models.base import LanguageModel
    from ..notes.notes import Notes

MAX_TOKENS = 32
"""Of an answer: a longer text would not be graded any further."""
GREEDY = "greedy"
DEFAULT_ARMS = (GREEDY, "entropix")


def add_parser(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)
    options.add_model(parser)
    add = parser.add_argument
    add(
        "--study",
        action=Study,
        type=options.file,
        metavar="FILE",
        help="take options from a TOML file, such as studies/heat.toml; options after it win",
    )
    _add_questions(parser)
    _add_arms(parser)
    options.add_notes(parser)
    _add_output(parser)
    options.add_verbose(parser)


def _add_questions(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--task",
        action="append",
        dest="tasks",
        metavar="TASK",
        help="arithmetic, sentences, stories, facts, one kind of facts such as capitals, notes,"
        " svamp=FILE, gsm8k=FILE, or a .jsonl file of yours; may be repeated (default: arithmetic)",
    )
    limit = "questions of each task (default: 200 of generated ones, all of the others)"
    add("--limit", type=options.questions, metavar="N", help=limit)
    add("--levels", metavar="NAMES", help="only these levels of the tasks, with commas between")
    half = "which half of the questions (default: report; all of a file)"
    add("--split", choices=SPLITS, help=half)
    examples = f"worked examples, drawn anew for each question (default: {EXAMPLES})"
    add("--examples", type=options.count, default=EXAMPLES, metavar="K", help=examples)
    form = "worked examples as a text to continue, or as turns of a chat (default: plain)"
    add("--form", choices=FORMS, default=PLAIN, help=form)


def _add_arms(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--arm",
        action="append",
        dest="arms",
        default=[],
        metavar="'NAME: SETTINGS'",
        help="an arm by its name: settings and fields of the profile, as in 'forks:"
        " branch.max_branches=8; branch.min_gap=4' or 'hot: sampler=\"min_p\";"
        " temperature=2'; may be repeated",
    )
    add(
        "--sampler",
        action="append",
        dest="samplers",
        metavar="NAME",
        help=f"{options.samplers()}; with a profile of its own, as in entropix:reference; may be"
        f" repeated (default, without --arm: {' and '.join(DEFAULT_ARMS)})",
    )
    add("--profile", default=AUTO, help="profile of samplers that name none (default: auto)")
    several = "base temperature; may be repeated, and each is compared"
    add("--temp", action="append", type=float, help=several)
    length = f"of an answer (default: {MAX_TOKENS})"
    add("--max-tokens", "-m", type=options.token_count, default=MAX_TOKENS, help=length)
    seeds = "answers of each arm to each question (default: 1)"
    add("--seeds", type=options.questions, default=1, metavar="N", help=seeds)
    seed = "of questions, examples and draws (default: 0)"
    add("--seed", type=int, default=0, help=seed)
    for option, what in (
        ("--vote", "what most of the first N answers of each arm say"),
        ("--best-of", "the one with the highest mean log p among the first N answers of each arm"),
    ):
        add(
            option,
            action="append",
            type=options.positive,
            default=[],
            metavar="N",
            help=f"also compare {what}; needs --seeds",
        )
    add(
        "--contrast",
        action="append",
        nargs=2,
        default=[],
        metavar=("ARM", "ARM"),
        help="compare these two arms, and no others; may be repeated (default: every two)",
    )


def _add_output(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    what = "write every answer to a file, a line each (JSON Lines)"
    options.add_answers_file(parser, what, BATCH)
    options.add_mode(parser)
    read = "summarize the answers of such a file, without a model; may be repeated"
    add("--read", action="append", type=options.file, metavar="FILE", help=read)
    confidence = "how well scores of an answer's own tokens separate right from wrong answers"
    add("--confidence", action="store_true", help=confidence)
    rauq = "read each answer again for the score RAUQ, which attention is needed for"
    add("--rauq", action="store_true", help=rauq)
    add("--json", action="store_true", help="print one object")
    add("--markdown", action="store_true", help="print tables in Markdown")


class Study(argparse.Action):
    """Parses the options of a study into the same namespace.

    A study is a TOML file. Its keys are options, by their long names; a list repeats an option.
    ``[arms]`` has settings by the name of the arm, ``contrasts`` texts such as "forks - cold", and
    ``about`` a text for readers.
    """

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        known = {name for action in parser._actions for name in action.option_strings}
        try:
            words = list(self._words(self._read(values), known))
        except PromptError as error:
            raise argparse.ArgumentError(self, f"{values}: {error}") from error
        parser.parse_args(words, namespace)

    def _read(self, path: Path) -> dict[str, Any]:
        try:
            text = limits.read_named(path, limits.CONFIGURATION_BYTES, PromptError)
            return parse_toml(text)
        except ValueError as error:
            raise PromptError(f"it is not TOML: {error}") from error

    def _words(self, study: dict[str, Any], known: set[str]) -> Iterator[str]:
        arms, contrasts = study.pop("arms", {}), study.pop("contrasts", [])
        if not isinstance(arms, dict) or not isinstance(contrasts, list):
            raise PromptError('write [arms] as a table, and contrasts as a list of "ARM - ARM"')
        for name, settings in arms.items():
            yield from ("--arm", f"{name}: {settings}")
        for contrast in contrasts:
            first, minus, second = str(contrast).partition(" - ")
            if not minus:
                raise PromptError(f"contrast {contrast!r}: write 'ARM - ARM'")
            yield from ("--contrast", first.strip(), second.strip())
        study.pop("about", None)
        for key, value in study.items():
            option = f"--{key}"
            if option not in known or option == self.option_strings[0]:
                raise PromptError(f"unknown key {key!r}; {hint(option, known)}")
            if isinstance(value, bool):
                yield from [option] if value else []
                continue
            for each in value if isinstance(value, list) else [value]:
                yield f"{option}={each}"


def run(arguments: argparse.Namespace) -> int:
    _check(arguments)
    if arguments.read:
        return _report(arguments, [one for file in arguments.read for one in read_records(file)])
    problems, arms = _problems(arguments), _arms(arguments)
    combined = combinations_of(arguments.vote, arguments.best_of)
    check_comparisons([arm.name for arm in arms], combined, arguments.contrast, arguments.seeds)
    model = options.model_options(arguments)
    planned = plan(problems, arms, model.name, arguments.form, arguments.seed, arguments.seeds)
    found: list[AnswerRecord] = []
    run = partial(_answer, arguments, found)
    code = shares.answer(model, arguments.output, planned, run, resume=arguments.resume)
    if code == INTERRUPTED or (model.ranks and model.ranks.rank > 0):
        return code
    return _report(arguments, read_records(arguments.output) if arguments.output else found) or code


def _check(arguments: argparse.Namespace) -> None:
    options.check_answers_file(arguments)
    if arguments.json and arguments.markdown:
        raise PromptError("choose one of --json and --markdown")
    if arguments.read and (arguments.output or arguments.tasks or arguments.rauq):
        raise PromptError(
            "--read summarizes answers that exist: leave --task, --output and --rauq out"
        )


def _problems(arguments: argparse.Namespace) -> list[Problem]:
    """Return the questions of all tasks in turn, so that a higher limit adds to them."""
    selection = Selection(
        limit=arguments.limit,
        seed=arguments.seed,
        levels=tuple(arguments.levels.split(",")) if arguments.levels else (),
        examples=arguments.examples,
    )
    tasks = dict.fromkeys(arguments.tasks or (ARITHMETIC,))
    turns = zip_longest(*(problems_of(task, selection, arguments.split) for task in tasks))
    every = [problem for turn in turns for problem in turn if problem is not None]
    return list({problem.id: problem for problem in every}.values())


def _arms(arguments: argparse.Namespace) -> list[Arm]:
    """Return the named arms, and every combination of samplers and temperatures.

    Where answers are chosen among several, there is a greedy arm to compare them with.
    """
    base = Settings(max_tokens=arguments.max_tokens, profile=arguments.profile)
    named = [named_arm(text, base) for text in arguments.arms]
    samplers = arguments.samplers or ([] if named else DEFAULT_ARMS)
    temperatures = list(dict.fromkeys(arguments.temp or [None]))
    every = arms_of(list(dict.fromkeys(samplers)), temperatures, base)
    arms = {arm.name: arm for arm in [*every, *named]}
    if len(arms) < len(every) + len(named):
        raise PromptError("two arms have the same name: choose another for one of them")
    greedy = replace(base, sampler=GREEDY)
    settings = [arm.settings for arm in arms.values()]
    several = arguments.vote or arguments.best_of or any(own.answers != 1 for own in settings)
    if several and greedy not in settings:
        arms.setdefault(GREEDY, Arm(GREEDY, greedy))
    return list(arms.values())


@contextmanager
def _notes(
    arguments: argparse.Namespace, planned: Sequence[PlannedAnswer]
) -> Iterator[Notes | None]:
    """Open the given folder; without one, the task `notes` brings its own."""
    if arguments.notes or not any(one.question.task == NOTES for one in planned):
        yield loading.open_notes(arguments.notes)
    else:
        with own_notes() as notes:
            yield notes


def _answer(
    arguments: argparse.Namespace,
    found: list[AnswerRecord],
    model: LanguageModel,
    tokenizer: TokenizerWrapper,
    planned: Sequence[PlannedAnswer],
    file: AnswersFile | None,
) -> int:
    """Answer questions into a file; without one, add the answers to those `found`."""

    def write(task: Task, record: dict[str, Any]) -> None:
        if file:
            file.write(task, record)
        elif "error" not in record:
            found.append(parse_record(record))

    with _notes(arguments, planned) as notes, file or nullcontext():
        options = {"batch": arguments.batch, "notes": notes, "read_again": arguments.rauq}
        begin = partial(answers, model, tokenizer, planned, **options)
        return write_answers(begin, len(planned), write, arguments.output)


def _report(arguments: argparse.Namespace, records: list[AnswerRecord]) -> int:
    if not records:
        raise OutputError("there are no answers to summarize")
    combined = combinations_of(arguments.vote, arguments.best_of)
    joint = [record for how in combined for record in combine(records, how)]
    pairs = [(first, second) for first, second in arguments.contrast]
    report = EvaluationReport.of([*records, *joint], pairs, confidence=arguments.confidence)
    if arguments.json:
        output.write_json(report.to_dict(), indent=2)
    elif arguments.markdown:
        output.write("\n\n".join(table.to_markdown() for table in report.tables()) + "\n")
    else:
        output.write("\n".join(table.to_text() for table in report.tables()))
    return 0
