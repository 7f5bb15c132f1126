"""`entropix eval`: questions with known answers, answered by several arms."""

from __future__ import annotations

from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from ..api.answers_file import Task
from ..errors import PromptError
from ..files import expanded
from ..lab.evaluate import ARMS, answers, arms_of, parse_record, plan, read_records
from ..lab.questions import ALL, ARITHMETIC, EXAMPLES, REPORT, Problem, Selection, problems_of
from ..profiles.profile import AUTO
from ..samplers.registry import SAMPLERS
from ..settings import Settings
from .shared import output
from .shared.answers import answer_missing
from .shared.options import FIRST, BatchOptions, Count, ModelOptions, command
from .shared.output import INTERRUPTED

DEFAULT_ARMS = ("greedy", "entropix")
ARM_HELP = (
    f"a sampler ({', '.join(SAMPLERS)}), or entropix changed: {', '.join(ARMS)}; may be repeated"
    f" (default: {' and '.join(DEFAULT_ARMS)})"
)


@command()
def evaluate(
    *files: Path,
    model: ModelOptions = ModelOptions(),
    task: Annotated[tuple[str, ...], Parameter(group=FIRST)] = (),
    arm: Annotated[tuple[str, ...], Parameter(group=FIRST, help=ARM_HELP)] = (),
    limit: Annotated[Count | None, Parameter(group=FIRST)] = None,
    examples: int = EXAMPLES,
    form: Literal["chat", "plain"] = "plain",
    profile: Annotated[str, Parameter(group=FIRST)] = AUTO,
    temp: tuple[float, ...] = (),
    max_tokens: Annotated[int, Parameter(name=["--max-tokens", "-m"])] = 32,
    n: Count = 1,
    seed: int = 0,
    batch: BatchOptions = BatchOptions(),
    json: Annotated[bool, Parameter(group=FIRST)] = False,
) -> int:
    """Answer questions with known answers, and grade the answers.

    Args:
        files: answers that --output wrote, to be summarized without a model
        task: arithmetic, facts, one kind of facts such as capitals, or a .jsonl file of yours; may
            be repeated (default: arithmetic)
        limit: questions of each task (default: 200 of arithmetic, all of the others)
        examples: worked examples, drawn anew for each question
        form: worked examples as a text to continue, or as turns of a chat
        profile: profile of all arms but reference
        temp: base temperature; may be repeated, and each is compared
        max_tokens: of an answer: a longer text would not be graded any further
        n: answers of each arm to each question
        seed: of questions, examples and draws
        json: print one object
    """
    from ..lab.report import EvaluationReport  # needs SciPy, which may be missing

    if files and (batch.output or task):
        raise PromptError("FILES are summarized as they are: leave --task and --output out")
    code, found = 0, [one for file in files for one in read_records(expanded(file, PromptError))]

    def keep(_: Task, record: dict[str, Any]) -> None:
        if "error" not in record:
            found.append(parse_record(record))

    if not files:
        arms = arms_of(
            arm or DEFAULT_ARMS, temp or [None], Settings(max_tokens=max_tokens, profile=profile)
        )
        problems = _problems(task or (ARITHMETIC,), limit, seed, examples)
        planned = plan(problems, arms, model.name, form, seed, n)
        code = answer_missing(
            model, planned, partial(answers, batch=batch.size), batch, keep, chat=form == "chat"
        )
        if code == INTERRUPTED:
            return code
        found = read_records(batch.output) if batch.output else found
    report = EvaluationReport.of(found, confidence=True)
    if json:
        output.write_json(report.to_dict(), indent=2)
    else:
        output.write("\n".join(table.to_text() for table in report.tables()))
    return code


def _problems(tasks: tuple[str, ...], limit: int | None, seed: int, examples: int) -> list[Problem]:
    """Return the questions of all tasks in turn, so that a higher limit adds to them.

    Of the tasks of the package it is the half that no threshold was set on.
    """
    found = [
        problems_of(
            task, Selection(limit, ALL if task.endswith(".jsonl") else REPORT, seed, examples)
        )
        for task in dict.fromkeys(tasks)
    ]
    every = [problem for turn in zip_longest(*found) for problem in turn if problem is not None]
    return list({problem.id: problem for problem in every}.values())
