"""Tasks by name: which questions ``--task`` stands for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ...errors import PromptError
from . import arithmetic, facts, noted, open_answers, question_files
from .questions import ALL, REPORT, Question, Wanted, interleaved

DEFAULT_LIMIT = 200
"""Questions of a task that can have any number of them."""
FILE_TASKS = (question_files.SVAMP, question_files.GSM8K)


def task_names() -> tuple[str, ...]:
    """Return the names of the tasks that come with the package."""
    return (arithmetic.NAME, facts.NAME, *facts.kinds(), noted.NAME, open_answers.NAME)


def questions_of(task: str, wanted: Wanted, split: str | None = None) -> list[Question]:
    """Return the questions of a task.

    Args:
        task: a name from `task_names`, ``svamp=FILE``, ``gsm8k=FILE``, or a file of your own.
        wanted: how many and which; its `split` does not matter.
        split: which half; None for the reported half of a graded task that comes with the package,
            and for all questions of a file and all open ones.

    Raises:
        PromptError: there is no such task or rung, or its file has a mistake.
    """
    name, _, file = task.partition("=")
    built_in = name in task_names() and not file
    wanted = replace(
        wanted, split=split or (REPORT if built_in and name != open_answers.NAME else ALL)
    )
    limit = wanted.limit
    if built_in and name == arithmetic.NAME:
        limit = limit or DEFAULT_LIMIT
    found = interleaved(_rungs(task, name, file, wanted), limit)
    if not found:
        raise PromptError(f"no question of {task} is in these rungs and this half")
    return found


def _rungs(task: str, name: str, file: str, wanted: Wanted) -> list[Iterator[Question]]:
    if name == arithmetic.NAME and not file:
        _check_rungs(task, wanted, arithmetic.RUNGS)
        return arithmetic.rungs(wanted)
    if name == facts.NAME and not file:
        _check_rungs(task, wanted, facts.kinds())
        return facts.rungs(wanted)
    if name in (noted.NAME, open_answers.NAME) and not file:
        return noted.rungs(wanted) if name == noted.NAME else open_answers.rungs(wanted)
    if name in facts.kinds() and not file:
        return facts.rungs(replace(wanted, rungs=(name,)))
    if name in FILE_TASKS and file:
        return question_files.rungs(name, file, wanted)
    if name in FILE_TASKS:
        raise PromptError(f"{name} needs its file: write {name}=FILE")
    if Path(task).suffix in (".jsonl", ".json"):
        return question_files.rungs(Path(task).stem, task, wanted)
    known = ", ".join([*task_names(), *(f"{each}=FILE" for each in FILE_TASKS)])
    raise PromptError(f"no task {task!r}: use {known}, or a .jsonl file of yours")


def _check_rungs(task: str, wanted: Wanted, known: object) -> None:
    names = list(known)  # type: ignore[call-overload]
    if wanted.rungs and not set(wanted.rungs) & set(names):
        raise PromptError(f"{task} has no such rung; it has {', '.join(names)}")
