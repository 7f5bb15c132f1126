"""Answering documents with the fields of a schema, for `entropix extract` and `calibrate`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ...api.answers_file import AnswersFile, Task, all_tasks, records, written
from ...api.prompt_file import PromptLine
from ...extraction.documents import Document
from ...extraction.rows import Row, row_of
from ...extraction.task import Extraction
from ...settings import Settings
from ..ranks import shares
from . import answers, loading, output
from .answers import Record
from .options import ModelOptions

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ...models.base import LanguageModel

MAX_TOKENS = 512
ANSWERS = ".answers.jsonl"
"""The suffix of the file of answers beside OUTPUT: the rows are made from it, and `--resume`
continues it."""


@dataclass(frozen=True)
class ExtractRequest:
    """What is extracted, from what, and where it goes."""

    model: ModelOptions
    settings: Settings
    extraction: Extraction
    documents: Sequence[Document]
    thresholds: Mapping[str, float]
    """The least confidence of the fields that have one."""
    otherwise: float
    """That of all others."""
    output: Path | None
    """None prints the rows."""
    resume: bool
    batch: int

    @property
    def answers(self) -> Path | None:
        return None if self.output is None else self.output.with_suffix(ANSWERS)

    def prompt(self, place: int) -> PromptLine:
        document = self.documents[place]
        messages = self.extraction.messages(document.text)
        return PromptLine(place + 1, self.settings, messages=messages, id=document.name)

    def candidates(self) -> dict[tuple[str, str], list[str]]:
        """Return, by document and field, how values could have begun otherwise."""
        found: dict[tuple[str, str], list[str]] = {}
        for record in written(self.answers) if self.answers else ():
            name = self.documents[record["line"] - 1].name
            for field in record.get("fields", ()):
                texts = [other["text"] for other in field["alternatives"]]
                found[name, field["pointer"].removeprefix("/")] = texts
        return found

    def row(self, record: Record) -> Row:
        """Return the row of a line of the file of answers."""
        return row_of(
            self.documents[record["line"] - 1].name, record, self.thresholds, self.otherwise
        )


def extract_rows(request: ExtractRequest) -> tuple[list[Row], int]:
    """Return a row for each document, those of an earlier run included, and an exit code.

    Where there is no file for them, the rows are printed as they come.
    """
    rows: dict[int, Row] = {}
    for place, document in enumerate(request.documents):
        if document.error:
            rows[place] = Row(document.name, error=document.error)
            _print(request, rows[place])
    tasks = all_tasks(
        [request.prompt(place) for place in range(len(request.documents)) if place not in rows], 1
    )

    def keep(task: Task, record: Record) -> None:
        rows[task.prompt.line - 1] = request.row(record)
        _print(request, request.row(record))

    code = 0
    if tasks:
        answer = partial(_answer, request, keep)
        code = shares.answer(request.model, request.answers, tasks, answer, resume=request.resume)
    if request.answers is not None:
        for record in written(request.answers):
            rows[record["line"] - 1] = request.row(record)
    return [rows[place] for place in sorted(rows)], code


def _print(request: ExtractRequest, row: Row) -> None:
    if request.output is None:
        output.write_json(row.to_dict())


def _answer(
    request: ExtractRequest,
    keep: Callable[[Task, Record], None],
    model: LanguageModel,
    tokenizer: TokenizerWrapper,
    tasks: Sequence[Task],
    file: AnswersFile | None,
) -> int:
    from ...api.batch import batch_generate

    loading.resolve(request.settings, model)
    batch = batch_generate(
        model,
        tokenizer,
        [task.prompt.tokens(tokenizer) for task in tasks],
        [task.settings for task in tasks],
        batch=request.batch,
        steady=True,
    )
    with file or nullcontext():
        return answers.write_answers(
            partial(records, batch, tasks),
            len(tasks),
            file.write if file else keep,
            request.output,
        )
