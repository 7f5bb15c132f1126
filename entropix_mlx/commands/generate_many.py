"""`entropix generate` where there are many answers: several prompts, or several to one prompt."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from ..api.answers_file import AnswersFile, Task, all_tasks
from ..api.prompt_file import PromptLine, at_line, read_prompt_file
from ..errors import PromptError
from ..settings import BATCH, Settings
from .ranks import shares
from .shared import (
    arg_types,
    draft_option,
    notes_option,
    options,
    output,
    progress,
    prompt_input,
)
from .shared.exit_codes import INTERRUPTED, USAGE

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ..api.batch import Batch
    from ..models.base import LanguageModel
    from ..notes.notes import Notes

MANY_ONLY = ("output", "resume", "batch")
ONE_ONLY = ("jsonl", "trace", "ask")
MOST_FAILURES = 5
"""Failures that are told at the end; the answers' file has all of them."""

Write = Callable[[Task, dict[str, Any]], None]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options about many answers."""
    add = parser.add_argument
    add("--n", type=arg_types.positive, default=1, help="answers to each prompt (default: 1)")
    what = "write the answers to a file, a line each as they end (JSON Lines)"
    options.add_answers_file(parser, what, batch=None)
    options.add_mode(parser)


def asked_for(arguments: argparse.Namespace) -> bool:
    """Tell whether the options ask for more than one answer, or for a file of answers.

    Raises:
        PromptError: they contradict one another.
    """
    many = bool(arguments.prompts or arguments.n > 1 or arguments.output)
    for name in ONE_ONLY if many else MANY_ONLY:
        if getattr(arguments, name):
            why = "is for one answer" if many else "is for --prompts, --n and --output"
            raise PromptError(f"--{name} {why}: leave it out")
    if many:
        for name in ("prefill_response", "prompt_cache_file"):
            if getattr(arguments, name):
                option = "--" + name.replace("_", "-")
                raise PromptError(f"{option} is for one answer: leave it out")
    options.check_answers_file(arguments)
    return many


def run(arguments: argparse.Namespace) -> int:
    """Answer all prompts; print the answers, or write them to a file, as they end."""
    settings = options.to_settings(arguments, arguments.top_logprobs)
    tasks = all_tasks(_prompts(arguments, settings), arguments.n)
    if shares.is_shared(arguments):
        return shares.answer(arguments, tasks, partial(_answer, arguments))
    file = None
    if arguments.output:
        file = AnswersFile(arguments.output, tasks, resume=arguments.resume)
        tasks = file.missing
        _tell(arguments, f"{_count(len(file.done))} there, {len(tasks)} to go", file.done)
    if not tasks:
        return 0
    notes = notes_option.opened(arguments)
    model, tokenizer = options.load_model(arguments)
    if arguments.verbose:
        options.hint_at_calibration(settings, settings.resolved(model.config).settings)
    return _answer(arguments, model, tokenizer, tasks, file, notes)


def _answer(
    arguments: argparse.Namespace,
    model: LanguageModel,
    tokenizer: TokenizerWrapper,
    tasks: list[Task],
    file: AnswersFile | None,
    notes: Notes | None = None,
) -> int:
    from ..answer.hooks import Hooks
    from ..api.batch import batch_generate

    draft = draft_option.load_draft(arguments, model, tokenizer)
    batch = batch_generate(
        model,
        tokenizer,
        _tokens(arguments, tokenizer, tasks),
        [task.settings for task in tasks],
        batch=arguments.batch or BATCH,
        steady=True,
        hooks=[
            Hooks(retrieve=notes.about(task.asked.question) if notes else None, draft_model=draft)
            for task in tasks
        ],
    )
    wanted = min(arguments.batch or BATCH, len(tasks))
    fewer = f": the memory does not allow {wanted}" if batch.size < wanted else ""
    _tell(arguments, f"{_count(batch.size)} at once{fewer}")
    with file or nullcontext():
        write = file.write if file else _to_stdout(arguments)
        return _generate(arguments, batch, tasks, write)


def _generate(arguments: argparse.Namespace, batch: Batch, tasks: list[Task], write: Write) -> int:
    """Run a batch and pass its answers on as they end; return the exit code."""
    written: set[int] = set()

    def end(index: int) -> None:
        answer = batch.answers[index]
        write(tasks[index], tasks[index].record(answer, batch.size))
        written.add(index)
        answer.steps.clear()  # thousands of answers would fill the memory

    with progress.shown(len(tasks), arguments.verbose) as bar:
        try:
            for index, step in batch:
                bar.token()
                if step.finish_reason:
                    end(index)
                    bar.answer()
            for index in range(len(tasks)):
                if index not in written:  # it failed, or was not allowed a token
                    end(index)
        except KeyboardInterrupt:
            _tell(arguments, "\n" + _interrupted(arguments, len(written)))
            return INTERRUPTED
    failed = [index for index, answer in enumerate(batch.answers) if answer.error]
    _tell(arguments, f"{_count(len(tasks) - len(failed))}, {bar.totals}")
    for index in failed[:MOST_FAILURES]:
        line = f"line {tasks[index].asked.line}: " if arguments.prompts else ""
        output.tell_error(f"{line}{batch.answers[index].error}")
    if len(failed) > MOST_FAILURES:
        output.tell_error(f"{len(failed)} answers failed in all")
    return USAGE if failed else 0


def _interrupted(arguments: argparse.Namespace, complete: int) -> str:
    where = f"; add --resume to go on with {arguments.output}" if arguments.output else ""
    return f"stopped: {_count(complete)} complete{where}"


def _prompts(arguments: argparse.Namespace, settings: Settings) -> list[PromptLine]:
    if arguments.prompts:
        return read_prompt_file(arguments.prompts, settings, arguments.system_prompt)
    prompt = prompt_input.read_prompt(arguments.prompt)
    return [PromptLine(1, settings, prompt, system_prompt=arguments.system_prompt)]


def _tokens(
    arguments: argparse.Namespace, tokenizer: TokenizerWrapper, tasks: list[Task]
) -> list[list[int]]:
    """Return the tokens of each task's prompt.

    Raises:
        PromptError: a chat template refuses a prompt; the message names its line in a file.
    """
    found: dict[int, list[int]] = {}
    for asked in {task.asked.line: task.asked for task in tasks}.values():
        with at_line(arguments.prompts, asked.line) if arguments.prompts else nullcontext():
            found[asked.line] = asked.tokens(tokenizer, bare=arguments.ignore_chat_template)
    return [found[task.asked.line] for task in tasks]


def _to_stdout(arguments: argparse.Namespace) -> Write:
    """Return what prints an answer: as an object a line, or as a text below a heading."""

    def write_text(task: Task, record: dict[str, Any]) -> None:
        prompt = f"prompt {task.asked.line}, " if arguments.prompts else ""
        output.write(f"── {prompt}answer {task.sample + 1}, seed {record['seed']} ──\n")
        output.write_text(record.get("text", "") + "\n")

    def write_json(task: Task, record: dict[str, Any]) -> None:
        output.write_json(record)

    return write_json if arguments.json else write_text


def _count(answers: int) -> str:
    return f"{answers} answer{'' if answers == 1 else 's'}"


def _tell(arguments: argparse.Namespace, text: str, if_any: object = True) -> None:
    if arguments.verbose and if_any:
        output.tell(text)
