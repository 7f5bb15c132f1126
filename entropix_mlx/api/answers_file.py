"""Files of answers: JSON Lines, one answer a line, written as the answers end.

A run that was stopped can go on: `AnswersFile` reads what is there, drops a last line that was cut
off, and lists the answers that are missing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import OutputError
from ..files import write_whole, writing
from ..old_names import of_settings
from ..palette import to_json
from ..settings import Settings
from ..summary import Summary
from .prompt_file import PromptLine

if TYPE_CHECKING:  # what is left to do is known before MLX is loaded
    from .batch import BatchAnswer


@dataclass(frozen=True)
class Task:
    """One answer that is to be generated."""

    asked: PromptLine
    sample: int
    """Its number among the answers to the prompt, from 0."""

    @property
    def settings(self) -> Settings:
        """Those of the prompt; each answer has the seed that follows the one before."""
        settings = self.asked.settings
        if settings.seed is None:
            return settings
        return replace(settings, seed=settings.seed + self.sample)

    @property
    def header(self) -> dict[str, Any]:
        seed = self.settings.seed
        seeded = {} if seed is None else {"seed": seed}
        named = {"sampler": self.settings.sampler, "options": self.settings.options}
        known: dict[str, Any] = json.loads(to_json(self.asked.asked | named | seeded))
        return known

    @property
    def key(self) -> tuple[int, int]:
        return self.asked.line, self.sample

    def record(self, answer: BatchAnswer, batch: int) -> dict[str, Any]:
        """Return the line of an answer; rounding depends on `batch`, the answers at once."""
        named = {} if self.asked.id is None else {"id": self.asked.id}
        begun = {"line": self.asked.line, "sample": self.sample} | named | self.header
        begun |= {"seed": answer.seed, "batch": batch}
        if answer.error is not None:
            return begun | {"error": str(answer.error)}
        verdict = answer.certainty
        judged = {} if verdict is None else {"certainty": verdict.to_dict()}
        several = {} if answer.choice is None else {"answers": answer.choice.to_dict()}
        return begun | Summary.of(answer.steps, answer.prompt_tokens).to_dict() | judged | several


def all_tasks(prompts: Sequence[PromptLine], n: int) -> list[Task]:
    """Return `n` answers to each prompt; those of one prompt follow one another."""
    return [Task(asked, sample) for asked in prompts for sample in range(n)]


class AnswersFile:
    """A file of answers that is open for more; a context manager.

    Each line goes to the file in one write, so that an interrupt leaves whole lines.
    """

    def __init__(self, path: str | Path, tasks: Sequence[Task], *, resume: bool = False) -> None:
        """Read what is there: nothing, unless a run is resumed.

        Where a run is resumed, a last line that was cut off leaves the file, and so do answers that
        failed, which are tried again.

        Raises:
            OutputError: the file exists, cannot be written, or holds answers to other prompts.
        """
        self.done: set[tuple[int, int]] = set()
        """The keys of the answers that are in the file."""
        self.path = Path(path)
        self._tasks = {task.key: task for task in tasks}
        if self.path.is_dir():
            raise OutputError(f"{path} is a folder: name a file in it")
        if resume:
            self._resume()
        elif self.path.exists():
            raise OutputError(
                f"{path} exists already: add --resume to continue it, or name another file"
            )

    @property
    def missing(self) -> list[Task]:
        return [task for key, task in self._tasks.items() if key not in self.done]

    def write(self, task: Task, record: dict[str, Any]) -> None:
        """Append an answer.

        Raises:
            OutputError: the file cannot be written.
        """
        rest = memoryview((to_json(record) + "\n").encode("utf-8"))
        with writing(self.path, OutputError):
            while rest:  # a disk that gets full takes a part
                rest = rest[self._file.write(rest) :]
        self.done.add(task.key)

    def __enter__(self) -> AnswersFile:
        with writing(self.path, OutputError):
            self._file = open(self.path, "ab", buffering=0)
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _resume(self) -> None:
        with writing(self.path, OutputError):
            old = self.path.read_bytes() if self.path.exists() else b""
        *lines, cut_off = old.split(b"\n")
        valid = [line for number, line in enumerate(lines, 1) if self._is_answer(number, line)]
        if cut_off or len(valid) < len(lines):
            text = "".join(line.decode("utf-8") + "\n" for line in valid)
            with writing(self.path, OutputError):
                write_whole(self.path, text)

    def _is_answer(self, number: int, line: bytes) -> bool:
        """Tell whether a line stays, and note which answer it is.

        Raises:
            OutputError: it is no answer to any of the prompts.
        """
        where = f"{self.path}, line {number}"
        try:
            record = json.loads(line)
            key = record["line"], record["sample"]
            task = self._tasks.get(key)
            record["options"] = of_settings(record.get("options", {}))
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
