"""`entropix extract`: fill the fields of a JSON schema from documents."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..api.answers_file import AnswersFile, Task, all_tasks, records, written
from ..api.prompt_file import PromptLine
from ..extraction.documents import Document, read_documents
from ..extraction.rows import Row, row_of, write_rows
from ..extraction.task import Extraction, read_examples
from ..extraction.thresholds import read_thresholds
from ..files import check_target
from ..settings import BATCH, Settings
from .ranks import shares
from .shared import answers, loading, options, output
from .shared.answers import Record
from .shared.options import ModelOptions

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ..models.base import LanguageModel

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

    def row(self, record: Record) -> Row:
        """Return the row of a line of the file of answers."""
        return row_of(self.documents[record["line"] - 1].name, record, self.thresholds)


def add_parser(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)
    add = parser.add_argument
    known = "text, Markdown, HTML or PDF files; with --text-column, CSV or JSON Lines files"
    add("files", nargs="+", metavar="FILE", help=known)
    add(
        "--schema",
        type=options.file,
        required=True,
        metavar="FILE",
        help="the fields: a JSON schema",
    )
    shown = "worked examples: JSON Lines with text and fields; two or three help a small model"
    add("--examples", type=options.file, metavar="FILE", help=shown)
    column = "take the texts from this column of the files"
    add("--text-column", metavar="NAME", help=column)
    least = "the least confidence of each field, as entropix calibrate --fields writes it"
    add("--thresholds", type=options.file, metavar="FILE", help=least)
    options.add_model(parser)
    add("--sampler", default="greedy", help=f"{options.samplers()} (default: greedy)")
    add("--seed", type=int, default=0, help="the same seed gives the same rows (default: 0)")
    options.add_generation(parser)
    parser.set_defaults(max_tokens=MAX_TOKENS)
    rows = "write the rows to this file: CSV where it ends with .csv, else JSON Lines"
    options.add_answers_file(parser, rows, batch=BATCH)
    options.add_verbose(parser)


def parse_request(arguments: argparse.Namespace) -> ExtractRequest:
    options.check_answers_file(arguments)
    if arguments.output:
        check_target(arguments.output)
    examples = read_examples(arguments.examples) if arguments.examples else []
    settings = options.to_settings(arguments)
    return ExtractRequest(
        model=options.model_options(arguments),
        settings=settings,
        extraction=Extraction(options.read_schema(arguments.schema), tuple(examples)),
        documents=read_documents(arguments.files, arguments.text_column),
        thresholds=read_thresholds(arguments.thresholds) if arguments.thresholds else {},
        output=arguments.output,
        resume=arguments.resume,
        batch=arguments.batch,
    )


def run(arguments: argparse.Namespace) -> int:
    request = parse_request(arguments)
    output.info(f"{len(request.documents)} documents")
    rows, code = extract_rows(request)
    if request.output is not None:
        write_rows(request.output, rows)
        output.write(f"{request.output}\n")
    return code or (output.USAGE if any(row.error for row in rows) else 0)


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
    from ..api.batch import batch_generate

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
