"""`entropix extract`: fill the fields of a JSON schema from documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ..api.answers_file import all_tasks, written
from ..api.prompt_file import PromptLine
from ..constraints.constraint import JSON_SCHEMA, Constraint
from ..errors import ConstraintError, OutputError, PromptError
from ..extraction.documents import Document, read_documents
from ..extraction.review import Review, read_decisions, with_decisions
from ..extraction.rows import Row, row_of, with_unsure, write_rows
from ..extraction.task import Extraction, read_examples
from ..files import check_target, expanded
from ..settings import Settings
from .shared import answers, output
from .shared.options import (
    FIRST,
    BatchOptions,
    File,
    ModelOptions,
    Share,
    command,
    read_schema,
    without,
)


@command(
    *without("answers", "constraint", "top_logprobs"),
    sampler="greedy",
    seed=0,
    max_tokens=512,
    loops="stop",
)
def extract(
    *files: str,
    fields: Annotated[Path, Parameter(name="--schema", group=FIRST)],
    examples: Annotated[File, Parameter(group=FIRST)] = None,
    text_column: str | None = None,
    model: ModelOptions = ModelOptions(),
    settings: Settings,
    batch: BatchOptions = BatchOptions(),
    review_share: Share = 0.3,
    review: bool = False,
) -> int:
    """Fill the fields of a JSON schema from documents.

    Args:
        files: text, Markdown, HTML or PDF files; with --text-column, CSV or JSON Lines files
        fields: the fields: a JSON schema
        examples: worked examples: JSON Lines with text and fields; two or three help a small model
        text_column: take the texts from this column of the files
        review_share: mark this share of all fields as unsure, the least sure first (0 to 1)
        review: go through the unsure fields in the terminal UI
    """
    if not files:
        raise PromptError("name the documents: entropix extract FILE … --schema FILE")
    output_file = batch.output  # CSV where it ends with .csv, else JSON Lines
    if review and not output_file:
        raise PromptError("--review needs a file of rows: name it with --output")
    if output_file:
        check_target(output_file)
    schema = read_schema(expanded(fields, ConstraintError))
    settings = replace(settings, constraint=Constraint(JSON_SCHEMA, schema))
    extraction = Extraction(schema, tuple(read_examples(examples)) if examples else ())
    documents = read_documents(files, text_column)
    output.info(f"{len(documents)} documents")

    found: list[answers.Record] = []
    rows = {n: Row(d.name, error=d.error) for n, d in enumerate(documents, 1) if d.error}
    lines = [
        PromptLine(n, settings, messages=extraction.messages(d.text), id=d.name)
        for n, d in enumerate(documents, 1)
        if not d.error
    ]
    code, beside = 0, output_file.with_suffix(".answers.jsonl") if output_file else None
    if lines:
        answer = partial(answers.answer_prompts, batch=batch.size)
        code = answers.answer_missing(
            model,
            all_tasks(lines, 1),
            answer,
            replace(batch, output=beside),
            lambda task, record: found.append(record),
            chat=True,
        )
    if beside:
        found = list(written(beside))
    for record in found:
        document = documents[record["line"] - 1]
        try:
            rows[record["line"]] = row_of(document, record, schema, extraction.examples)
        except (LookupError, TypeError, ValueError) as error:
            message = f"{beside}: the answer to {document.name} is not whole: remove its line"
            raise OutputError(message) from error
    in_order = with_unsure([rows[number] for number in sorted(rows)], review_share)
    if output_file:
        decisions = output_file.with_suffix(".decisions.jsonl")
        if review and code != output.INTERRUPTED:
            _review(in_order, documents, found, decisions)
        write_rows(output_file, with_decisions(in_order, read_decisions(decisions)))
        output.write(f"{output_file}\n")
    else:
        for one in in_order:
            output.write_json(one.to_dict())
    return code or (output.USAGE if any(one.error for one in in_order) else 0)


def _review(
    rows: Sequence[Row],
    documents: Sequence[Document],
    found: Sequence[answers.Record],
    decisions: Path,
) -> None:
    """Let a person decide on the unsure fields."""
    output.check_screen("look at the column unsure instead")
    from entropix_mlx.tui.review import ReviewApp

    candidates = {
        (documents[record["line"] - 1].name, field["pointer"].removeprefix("/")): [
            other["text"] for other in field["alternatives"]
        ]
        for record in found
        for field in record.get("fields", ())
    }
    texts = {document.name: document.text for document in documents}
    ReviewApp(Review(rows, texts, candidates, decisions)).run()
