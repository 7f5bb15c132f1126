"""Files of answers: JSON Lines, one answer a line, written as the answers end.

A run that was stopped can go on: `AnswersFile` reads what is there, drops a last line that was cut
off, and knows which answers are missing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from .. import limits
from ..errors import OutputError, PromptError
from ..files import write_line, write_whole, writing
from ..records import to_json
from ..settings import Settings
from ..summary import Summary
from .prompt_file import PromptLine

if TYPE_CHECKING:  # what is left to do is known before MLX is loaded
    from .batch import AnswerBatch, BatchAnswer

T = TypeVar("T", bound="Task")


@dataclass(frozen=True)
class Task:
    """One answer that is to be generated."""

    prompt: PromptLine
    sample: int  # its number among the answers to the prompt, from 0

    @property
    def settings(self) -> Settings:
        """Those of the prompt; each answer has the seed that follows the one before."""
        settings = self.prompt.settings
        seed = None if settings.seed is None else settings.seed + self.sample
        return replace(settings, seed=seed)

    @property
    def header(self) -> dict[str, Any]:
        """What the line of the answer says of the prompt and its settings."""
        seed = self.settings.seed
        seeded = {} if seed is None else {"seed": seed}
        named = {"sampler": self.settings.sampler, "options": self.settings.options}
        known: dict[str, Any] = json.loads(to_json(self.prompt.content | named | seeded))
        return known

    @property
    def key(self) -> tuple[int, int]:
        return self.prompt.line, self.sample

    @property
    def name(self) -> str:
        """For messages."""
        return self.prompt.id or f"line {self.prompt.line}"

    def record(self, answer: BatchAnswer, batch: int) -> dict[str, Any]:
        """Return the line of an answer.

        Args:
            answer: it has ended.
            batch: answers that ran at once; rounding depends on it.
        """
        record: dict[str, Any] = {"line": self.prompt.line, "sample": self.sample}
        record |= {} if self.prompt.id is None else {"id": self.prompt.id}
        record |= self.header | {"seed": answer.seed, "batch": batch}
        if answer.error is not None:
            return record | {"error": str(answer.error)}
        record |= Summary.of(answer.steps, answer.prompt_tokens).to_dict()
        if (verdict := answer.certainty) is not None:
            record["certainty"] = verdict.to_dict()
        if answer.several is not None:
            record["answers"] = answer.several.to_dict()
        return record


def all_tasks(prompts: Sequence[PromptLine], n: int) -> list[Task]:
    """Return `n` answers to each prompt; those of one prompt follow one another. Raises
    `PromptError` if they are too many."""
    check_count(len(prompts) * n)
    return [Task(prompt, sample) for prompt in prompts for sample in range(n)]


def check_count(answers: int, most: int = limits.ANSWERS) -> None:
    if answers > most:
        raise PromptError(f"{answers:,} answers are too many: ask for {most:,} at most")


def records(
    batch: AnswerBatch, tasks: Sequence[T], on_token: Callable[[], None]
) -> Iterator[tuple[T, dict[str, Any]]]:
    """Yield each task with its record as its answer ends; those that failed come last."""
    left = dict(enumerate(tasks))

    def end(index: int) -> tuple[T, dict[str, Any]]:
        task, answer = left.pop(index), batch.answers[index]
        record = task.record(answer, batch.size)
        answer.steps, answer.several = [], None  # thousands of answers would fill the memory
        return task, record

    for index, step in batch:
        on_token()
        if step.finish_reason:
            yield end(index)
    yield from map(end, list(left))


def written(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a file that an `AnswersFile` has checked; none if there is no file."""
    if path.exists():
        for _, line in limits.read_lines(path, limits.ANSWERS_BYTES, OutputError):
            yield json.loads(line)


class AnswersFile:
    """A file of answers that is open for more; a context manager.

    Each line goes to the file in one write, so that an interrupt leaves whole lines.
    """

    def __init__(self, path: str | Path, tasks: Sequence[Task], *, resume: bool = False) -> None:
        """Read what is there: nothing, unless a run is resumed.

        A run that is resumed first drops a last line that was cut off, and answers that failed:
        they are tried again. Raises `OutputError` if the file exists, cannot be written, or holds
        answers to other prompts.
        """
        self.done: set[tuple[int, int]] = set()  # the keys of the answers that are in the file
        self.path = Path(path)
        self._tasks = {task.key: task for task in tasks}
        if os.path.isdir(self.path):
            raise OutputError(f"{path} is a folder: name a file in it")
        if resume and os.path.exists(self.path):
            self._resume()
        elif os.path.lexists(self.path) and not resume:
            raise OutputError(
                f"{path} exists already: add --resume to continue it, or name another file"
            )

    def write(self, task: Task, record: dict[str, Any]) -> None:
        """Append an answer. Raises `OutputError` if the file cannot be written."""
        with writing(self.path, OutputError):
            write_line(self._file, to_json(record))
        self.done.add(task.key)

    def __enter__(self) -> AnswersFile:
        with writing(self.path, OutputError):
            self._file = FileIO(self.path, "a")
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _resume(self) -> None:
        lines = limits.read_lines(self.path, limits.ANSWERS_BYTES, OutputError)
        valid = [line for number, line in lines if self._is_answer(number, line)]
        with writing(self.path, OutputError):
            if sum(map(len, valid)) < self.path.stat().st_size:
                write_whole(self.path, b"".join(valid))

    def _is_answer(self, number: int, line: bytes) -> bool:
        """Tell whether a line stays, and note which answer it is. Raises `OutputError` if it is no
        answer to any of the prompts."""
        where = f"{self.path}, line {number}"
        try:
            record = json.loads(line.decode("utf-8"))
            key = record["line"], record["sample"]
            task = self._tasks.get(key)
        except (ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
            raise OutputError(f"{where} is not an answer: name another file") from error
        if task is None or any(record.get(name) != value for name, value in task.header.items()):
            raise OutputError(
                f"{where} answers none of these prompts with these options: resume with the same"
                " ones, or name another file"
            )
        if "error" in record or key in self.done:
            return False
        self.done.add(key)
        return True
