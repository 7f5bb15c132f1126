"""Many answers: the loop that generates those that a file does not have yet, below a bar."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ...api.answers_file import AnswersFile, Task, records
from ...api.prompt_file import at_line
from ...notes import Notes
from . import output
from .loading import load_model, resolve
from .options import BatchOptions, ModelOptions

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ...models.base import LanguageModel

Record = dict[str, Any]
TaskT = TypeVar("TaskT", bound=Task)
MOST_FAILURES = 5
"""Failures that are listed at the end; a file of answers has all of them."""


def answer_prompts(
    model: LanguageModel,
    tokenizer: TokenizerWrapper,
    tasks: Sequence[Task],
    batch: int,
    *,
    on_token: Callable[[], None],
    bare: bool = False,
    notes: Path | None = None,
    prompts: Path | None = None,
) -> Iterable[tuple[Task, Record]]:
    """Begin a batch; return each task with its record as it ends.

    Args:
        model: from `load_model`.
        tokenizer: from `load_model`.
        tasks: what to answer.
        batch: answers at once, if the memory allows.
        on_token: called at each token.
        bare: leave the chat template out.
        notes: a folder of texts from which passages are quoted.
        prompts: the file of the prompts, to be named in errors.
    """
    from ...answer.hooks import Hooks
    from ...api.batch import batch_generate

    resolve(tasks[0].settings, model, many=True)
    passages = Notes(notes) if notes else None
    tokens: dict[int, list[int]] = {}
    for line in {task.prompt.line: task.prompt for task in tasks}.values():
        with at_line(prompts, line.line) if prompts else nullcontext():
            tokens[line.line] = line.tokens(tokenizer, bare=bare)
    begun = batch_generate(
        model,
        tokenizer,
        [tokens[task.prompt.line] for task in tasks],
        [task.settings for task in tasks],
        batch=batch,
        hooks=[
            Hooks(retrieve=passages.about(task.prompt.question) if passages else None)
            for task in tasks
        ],
    )
    output.info(f"{min(begun.size, len(tasks))} answers at once")
    return records(begun, tasks, on_token)


def answer_missing(
    model: ModelOptions,
    tasks: Sequence[TaskT],
    answer: Callable[..., Iterable[tuple[TaskT, Record]]],
    batch: BatchOptions,
    keep: Callable[[TaskT, Record], None],
    *,
    chat: bool = False,
) -> int:
    """Answer the tasks that have no answer in a file yet, below a progress bar.

    Args:
        model: to be loaded, if there is anything to answer.
        tasks: all of them.
        answer: takes the model, its tokenizer, the tasks to answer and `on_token`, a function to
            call at each token; yields each task with its record as it ends.
        batch: the file of the answers, if there is one, and whether it may hold some.
        keep: takes each answer where there is no file.
        chat: refuse a model without a chat template.

    Returns:
        An exit code.
    """
    file = batch.output
    answers = AnswersFile(file, tasks, resume=batch.resume) if file else None
    done = answers.done if answers else set()
    missing = [task for task in tasks if task.key not in done]
    if done:
        output.info(f"{len(done)} answers exist, {len(missing)} to go")
    if not missing:
        return 0
    form = "{n}/{total} answers {bar}{postfix}, {remaining} left"
    tokens, began = 0, math.inf

    def on_token() -> None:
        nonlocal tokens, began
        tokens, began = tokens + 1, min(began, time.perf_counter())
        bar.set_postfix_str(speed(), refresh=False)
        bar.update(0)

    def speed() -> str:
        return f"{tokens / max(1e-9, time.perf_counter() - began):.1f} tokens/s"

    ending = answer(*load_model(model, chat=chat), missing, on_token=on_token)
    write = answers.write if answers else keep
    failures: list[str] = []
    several: list[Record] = []
    bar = output.progress_bar(total=len(missing), smoothing=0, bar_format=form)
    with answers or nullcontext(), bar:
        try:
            for task, record in ending:
                write(task, record)
                if "error" in record:
                    failures.append(f"{task.name}: {record['error']}")
                if isinstance(record.get("answers"), dict):  # not those of a question
                    several.append(record["answers"])
                bar.update(1)
        except KeyboardInterrupt:
            again = f"; add --resume to go on with {file}" if file else ""
            output.report(f"\nstopped: {bar.n} answers complete{again}")
            return output.INTERRUPTED
    output.info(f"{len(missing) - len(failures)} answers, {tokens} tokens at {speed()}")
    if several:
        output.info(_spent(several))
    for failure in failures[:MOST_FAILURES]:
        output.report_error(failure)
    if len(failures) > MOST_FAILURES:
        output.report_error(f"{len(failures)} answers failed in all")
    return output.USAGE if failures else 0


def _spent(several: Sequence[Record]) -> str:
    """Return what was spent on several answers, from the totals of each prompt."""
    drawn = sum(len(one["answers"]) > 1 for one in several)
    alone = sum(one["answers"][0]["forward_tokens"] for one in several)
    together = sum(one["forward_tokens"] for one in several)
    return (
        f"several answers to {drawn} of {len(several)} prompts: {together:,} forward tokens,"
        f" {together / max(1, alone):.2f} times those of the first answers"
    )
